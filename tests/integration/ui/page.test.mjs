// The page in Chromium with the fixture's data: every view, keys, access, sizes, and text that tries to do harm.

import assert from 'node:assert/strict';
import test, { after, before } from 'node:test';

import { EPISODE, VIEWS, freePort, harm, launch, open, openView, serve, serveFor } from './browser.mjs';

let browser;
let server;
before(async () => {
  browser = await launch();
  server = await serve(await freePort());
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

/** Opens a view and waits until its data is there. */
async function visit(page, view, base = server.base) {
  await openView(page, base, view);
  await page.waitForFunction(() => document.querySelector('.live')?.textContent === 'live');
  await page.waitForFunction(
    () => document.querySelector('main .view') && !document.querySelector('main')?.innerText.includes('Loading…'),
  );
}

for (const colorScheme of ['light', 'dark']) {
  test(`no view reports an error or scrolls sideways, on a desk and on a phone, ${colorScheme}`, async (t) => {
    for (const viewport of [
      { width: 1280, height: 860 },
      { width: 360, height: 740 },
    ]) {
      const { page, problems } = await open(t, browser, server.base, { viewport, colorScheme });
      for (const view of VIEWS) {
        await visit(page, view);
        const { scroll, width } = await page.evaluate(() => ({
          scroll: document.documentElement.scrollWidth,
          width: innerWidth,
        }));
        assert.ok(scroll <= width, `${view}: ${scroll} > ${width}`);
        assert.deepEqual(problems, [], view);
      }
    }
  });
}

test('what agents wrote is text: no markup, no script, no hidden characters', async (t) => {
  const { page, problems } = await open(t, browser, server.base);
  for (const view of VIEWS) {
    await visit(page, view);
    assert.deepEqual(await harm(page), [], view);
  }
  await visit(page, `episode/${EPISODE}`);
  assert.match(
    await page.locator('.conversation').innerText(),
    /<script>document\.title='harmed'<\/script>\n\\u\{1b\}\[31mred/,
  );
  assert.deepEqual(problems, []);
});

test('from the overview to a token', async (t) => {
  const { page, problems } = await open(t, browser, server.base);
  await visit(page, 'overview');
  await page.getByRole('link', { name: /Worst of step/ }).click();
  await page.getByRole('button', { name: 'Tokens' }).click();
  await page.getByRole('button', { name: 'Log-probability' }).click();
  await page.mouse.move(0, 0);
  await page.locator('.tokens').first().focus();
  await page.keyboard.press('ArrowRight');
  assert.match(await page.locator('.token-tip:visible').innerText(), /position 0\s+sampled no/);
  // Not a token that goes over a line's end, whose middle is elsewhere.
  await page.locator('.tokens .token[class*="surprise-"]').filter({ hasNotText: '⏎' }).first().hover();
  assert.match(await page.locator('.token-tip:visible').innerText(), /log-probability −\d.*\n.*advantage/s);
  assert.deepEqual(problems, []);
});

test('keys', async (t) => {
  const { page, problems } = await open(t, browser, server.base);
  await visit(page, 'overview');
  const at = (hash) => page.waitForFunction((hash) => location.hash === hash, hash);
  // A list that is filled again while keys come in takes the focus with it; people press again, too.
  const press = async (keys, arrived, focus) => {
    for (let tries = 0; tries < 10 && !page.url().includes(arrived); tries++) {
      await focus?.focus();
      for (const key of keys) await page.keyboard.press(key);
      await page.waitForURL((url) => url.hash.includes(arrived), { timeout: 3000 }).catch(() => {});
    }
    assert.ok(page.url().includes(arrived), `${page.url()}: ${arrived}`);
  };
  for (const [keys, hash] of [
    [['g', 'e'], '#/episodes'],
    [['g', 'k'], '#/tasks'],
    [[']'], '#/engine'],
    [['['], '#/tasks'],
    [['g', 'e'], '#/episodes'],
  ]) {
    for (const key of keys) await page.keyboard.press(key);
    await at(hash);
  }
  const pager = page.locator('.pager');
  await pager.getByText('of 9,500 episodes').waitFor();
  await page.keyboard.press('/');
  await page.locator('.search:focus').waitFor();
  await page.keyboard.type('astropy-12001');
  await page.waitForFunction(() => location.hash.includes('q=astropy-12001'));
  await page.keyboard.press('Escape');
  await page.keyboard.press('g');
  await page.keyboard.press('e');
  await at('#/episodes');
  await pager.getByText('1 to 100 of 9,500 episodes').waitFor();
  await press(['ArrowDown', 'ArrowDown', 'k', 'Enter'], '#/episode/', page.locator('.scroll').first());
  await page.keyboard.press('Escape');
  await at('#/episodes');
  await page.keyboard.press('?');
  await page.locator('dialog.help').waitFor();
  await page.keyboard.press('Escape');
  await page.locator('dialog.help').waitFor({ state: 'hidden' });
  const light = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.keyboard.press('d');
  await page.waitForFunction((light) => getComputedStyle(document.body).backgroundColor !== light, light);
  assert.deepEqual(problems, []);
});

test('arrows turn pages and lead through the episodes of a task', async (t) => {
  const { page, problems } = await open(t, browser, server.base);
  await visit(page, 'episodes');
  await page.keyboard.press('ArrowRight');
  await page.getByText('101 to 200 of 9,500 episodes').waitFor();
  await page.keyboard.press('ArrowLeft');
  await page.getByText('1 to 100 of 9,500 episodes').waitFor();
  await page.locator('tbody tr').nth(8).click();
  await page.locator('.episode .chip[aria-current]').waitFor();
  const before = await page.evaluate(() => location.hash);
  await page.keyboard.press('ArrowLeft');
  await page.waitForFunction((hash) => location.hash !== hash, before);
  await page.locator('.message').first().waitFor();
  assert.deepEqual(problems, []);
});

test('filters are in the address, so links lead to what one sees', async (t) => {
  const { page, problems } = await open(t, browser, server.base);
  await visit(page, 'episodes?sort=reward&type=eval');
  const rewards = await page.locator('tbody tr td:nth-child(5)').allInnerTexts();
  assert.equal(rewards.length, 100);
  assert.deepEqual(
    rewards,
    [...rewards].sort((a, b) => Number(a) - Number(b)),
  );
  await visit(page, 'episodes?type=all&task=astropy__astropy-12001&q=client-2');
  await page.locator('.pager', { hasText: /\d+ match; 1 to 64 of 64 episodes/ }).waitFor();
  await visit(page, 'training?q=seconds%2F&log=1&smooth=0.9');
  assert.equal(await page.locator('.metric:visible').count(), 3);
  await visit(page, 'tasks?only=none');
  assert.ok((await page.locator('tbody tr td:last-child').allInnerTexts()).every((signal) => signal === 'none'));
  await visit(page, 'constructor');
  assert.ok(await page.locator('.overview').isVisible(), 'unknown views lead to the overview');
  assert.deepEqual(problems, []);
});

test('ten thousand episodes and a thousand steps of all metrics stay fluid', async (t) => {
  const { page, problems } = await open(t, browser, server.base);
  await page.addInitScript(() => {
    globalThis.blocked = [];
    new PerformanceObserver((list) =>
      globalThis.blocked.push(...list.getEntries().map((entry) => entry.duration)),
    ).observe({ type: 'longtask' });
  });
  const longest = () => page.evaluate(() => Math.max(0, ...globalThis.blocked.splice(0)));
  await visit(page, 'training');
  t.diagnostic(`training: longest task while opening ${await longest()} ms`);
  for (let at = 0; at < 4000; at += 400) await page.mouse.wheel(0, 400).then(() => page.waitForTimeout(50));
  const scrolling = await longest();
  await visit(page, 'episodes?type=all&offset=9900');
  await page.locator('.pager', { hasText: /9,901 to 10,000 of 10,000 episodes/ }).waitFor();
  const episodes = await longest();
  await visit(page, 'tasks');
  await page.waitForTimeout(2000);
  const live = await longest();
  t.diagnostic(`longest task: scrolling ${scrolling} ms, last page of episodes ${episodes} ms, live tasks ${live} ms`);
  if (process.env.MEASURE) assert.ok(Math.max(scrolling, episodes, live) < 400);
  assert.deepEqual(problems, []);
});

test('a token is asked for once, or taken from the link, and leaves the address', async (t) => {
  const guarded = await serveFor(t, await freePort(), '--token', 'correct-horse');
  const { page, problems } = await open(t, browser, guarded.base);
  const asked = [];
  page.on('request', (request) => asked.push(request.url()));
  await page.goto(`${guarded.base}/ui`);
  const field = page.getByLabel('Access token');
  await field.fill('wrong-horse');
  await page.getByRole('button', { name: 'Open' }).click();
  await page.getByText('That token was not accepted.').waitFor();
  await field.fill('correct-horse');
  await page.keyboard.press('Enter');
  await page.locator('.card').first().waitFor();
  await page.reload();
  await page.locator('.card').first().waitFor();
  const linked = await open(t, browser, guarded.base);
  await linked.page.goto(`${guarded.base}/ui#token=correct-horse`);
  await linked.page.locator('.card').first().waitFor();
  assert.ok(!linked.page.url().includes('horse'), linked.page.url());
  assert.ok(
    asked.every((url) => !url.includes('horse')),
    String(asked),
  );
  // Chromium itself writes about each 401.
  assert.deepEqual(
    problems.filter((problem) => !problem.includes('status of 401')),
    [],
  );
  assert.deepEqual(linked.problems, []);
});

test('a server that goes away is waited for, and what was seen stays', async (t) => {
  const port = await freePort();
  const gone = await serveFor(t, port);
  const { page, problems } = await open(t, browser, gone.base);
  await visit(page, 'overview', gone.base);
  await gone.stop();
  await page.getByText(/Not connected for .* What you see is as it was then/).waitFor();
  assert.ok(await page.locator('.figures').isVisible());
  await serveFor(t, port);
  await page.waitForFunction(() => document.querySelector('.live')?.textContent === 'live', null, { timeout: 20_000 });
  assert.ok(!(await page.locator('.banner').isVisible()));
  // Chromium itself writes about refused connections.
  assert.deepEqual(
    problems.filter((problem) => !/net::ERR_/.test(problem)),
    [],
  );
});

for (const mode of ['offline', 'finished', 'booting', 'updating']) {
  test(`every view says what to do while the engine is ${mode}`, async (t) => {
    const other = await serveFor(t, await freePort(), mode);
    const { page, problems } = await open(t, browser, other.base);
    for (const view of VIEWS.filter((view) => mode !== 'offline' || !view.startsWith('episode/'))) {
      await visit(page, view, other.base);
      await page.waitForFunction(() => document.querySelector('main').innerText.trim().length > 20);
    }
    await visit(page, 'overview', other.base);
    const said = {
      offline: /Earlier runs, last swe_bench_qwen3_4b[^]*Start one: ajet-swarm roll/,
      finished: /finished after 1,000 updates, .* ago[^]*ajet-swarm chat \/data\/saved_experiments/,
      booting: /Booting for/,
      updating: /training on \d+ episodes/,
    }[mode];
    // Some of it comes with a later answer of the server.
    await page.locator('main', { hasText: said }).waitFor();
    assert.deepEqual(problems, []);
  });
}
