// The page beside a real server while the quickstart trains: live, and from the worst episode down to a token.
// With SCREENSHOTS, a directory, it also takes the pictures of the docs.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import test, { after, before } from 'node:test';

import { end, launch, open, openView } from './browser.mjs';
import { startSwarm } from './swarm.mjs';

const job = new URL('../../../config/jobs/quickstart.yaml', import.meta.url).pathname;
/** Updates after which the views are tried. */
const UPDATES = Number(process.env.UPDATES ?? 30);

let browser;
let swarm;
let roll;
let base;

before(async () => {
  swarm = await startSwarm();
  base = swarm.base;
  browser = await launch();
  roll = swarm.run('roll', job, '--swarm-url', base);
});

after(async () => {
  await browser?.close();
  await swarm?.stop();
});

const stepOf = (page) =>
  page
    .locator('.state-pill')
    .innerText()
    .then((text) => Number(/· (\d+)/.exec(text)?.[1] ?? 0));

test('the page follows the quickstart, from the curve down to a token', async (t) => {
  const { page, problems } = await open(t, browser, base);
  const start = Date.now();
  await page.goto(`${base}/ui`);
  await page.locator('.state-word').waitFor();
  t.diagnostic(`loaded after ${Date.now() - start} ms`);
  await page.waitForFunction(
    (updates) => Number(/· (\d+)/.exec(document.querySelector('.state-pill').textContent)?.[1]) > updates,
    UPDATES,
    { timeout: 300_000 },
  );
  const first = await stepOf(page);
  await page.waitForFunction(
    (step) => Number(/· (\d+)/.exec(document.querySelector('.state-pill').textContent)?.[1]) > step,
    first,
    { timeout: 60_000 },
  );
  await page.locator('.overview canvas').first().waitFor();
  await page.locator('.card').first().waitFor();
  await picture(page, 'web-page.png');

  await page.getByRole('link', { name: /Worst of step/ }).click();
  await page.locator('.message.role-user').first().waitFor();
  await page.locator('.message.role-assistant').first().waitFor();
  await page.getByRole('button', { name: 'Tokens' }).click();
  await page.getByRole('button', { name: 'Advantage' }).click();
  await page.locator('.tokens .token:not(.given)').first().hover();
  assert.match(await page.locator('.token-tip:visible').innerText(), /log-probability/);
  await picture(page, 'web-page-tokens.png');

  for (const [view, ready] of [
    ['training', '.metric canvas'],
    ['episodes', 'tbody tr'],
    ['tasks', 'tbody tr'],
    ['engine', '.metric canvas'],
    ['runs', '.runs canvas'],
  ]) {
    await openView(page, base, view);
    await page.locator(ready).first().waitFor();
    await picture(page, view === 'training' ? 'web-page-training.png' : '');
  }
  await openView(page, base, 'log');
  await page.locator('.log-view').waitFor();
  assert.deepEqual(problems, []);
});

test('after the end of the run and of the server, what was trained is still shown', async (t) => {
  const { page, problems } = await open(t, browser, base);
  await page.goto(`${base}/ui`);
  await page.locator('.card').first().waitFor();
  await end(roll);
  await fetch(`${base}/stop_engine`, { method: 'POST' });
  await page.locator('.state-word', { hasText: 'Ended' }).waitFor();
  await page.getByText(/^ajet-swarm chat .*\/saved_experiments\//).waitFor();
  await openView(page, base, 'training');
  await page.locator('.metric canvas').first().waitFor();
  await openView(page, base, 'episodes?sort=reward');
  await page.locator('tbody tr').first().waitFor();
  assert.deepEqual(problems, []);
  await swarm.stop();
  await page.getByText(/Not connected for/).waitFor();
});

/** Takes a picture for the docs, if that is wanted. */
async function picture(page, name) {
  if (process.env.SCREENSHOTS && name) await page.screenshot({ path: join(process.env.SCREENSHOTS, name) });
}
