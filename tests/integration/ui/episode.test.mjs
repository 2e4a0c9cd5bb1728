// A real server with one episode: text that tries to do harm as task, answer, message, metric and log line; loading.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { after, before } from 'node:test';

import { harm, launch, open, openView } from './browser.mjs';
import { startSwarm, until } from './swarm.mjs';

const HOSTILE =
  '<img src=x onerror="document.title=1"><script>document.title=2</script></pre> \u001b[31mred\u001b[0m ' +
  '\u202egnp.exe\u202c zero\u200bwidth \ufeff javascript:alert(1)';
const CLIENT = 'client <b>\u202e';

let browser;
let swarm;

before(async () => {
  swarm = await startSwarm();
  browser = await launch();
  const script = join(swarm.directory, 'answers.jsonl');
  writeFileSync(script, `${JSON.stringify({ text: HOSTILE })}\n`);
  const ajet = {
    experiment_name: 'hostile',
    model: { path: `builtin:scripted:${script}` },
    data: { train_batch_size: 8, max_prompt_length: 4000, max_response_length: 2000 },
    rollout: { num_repeat: 2 },
  };
  await call('/sync_train_config', { yaml_as_string: JSON.stringify({ ajet }) });
  await call('/start_engine', {});
  await until('the engine rolls', async () => {
    const { engine_status: status } = await (await fetch(`${swarm.base}/get_engine_status`)).json();
    return status === 'ENGINE.ROLLING';
  });
});

after(async () => {
  await browser?.close();
  await swarm?.stop();
});

async function call(path, body, key) {
  const headers = { 'content-type': 'application/json', ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(swarm.base + path, { method: 'POST', headers, body: JSON.stringify(body) });
  const answer = await response.json();
  assert.ok(response.ok, `${path}: ${JSON.stringify(answer)}`);
  return answer;
}

async function claim() {
  return call('/claim_episode', {
    client_uuid: CLIENT,
    episode_type: 'train',
    discard_episode_timeout: 600,
    throttle_policy: { ratio: 100, expected_batch_size: 8, expected_num_repeat: 2, current_task_id: HOSTILE },
  });
}

test('foreign text is text in every view, while its episode runs and afterwards', async (t) => {
  const { episode_uuid: uuid, openai_api_key: key } = await claim();
  await call('/v1/chat/completions', { model: HOSTILE, messages: [{ role: 'user', content: HOSTILE }] }, key);
  await call('/push_verbose_log', { tag: HOSTILE, message: HOSTILE });
  const { page, problems } = await open(t, browser, swarm.base);
  const visit = async (view, ready) => {
    await openView(page, swarm.base, view);
    await page.locator(ready).first().waitFor();
    assert.deepEqual([await harm(page), problems], [[], []], view);
  };
  await visit('episodes?show=running', 'tbody tr');
  await visit(`episode/${uuid}`, '.message.role-assistant');
  assert.match(await page.locator('.message.role-assistant').innerText(), /<script>.*\\u\{1b\}\[31mred.*\\u\{202e\}/s);
  await call('/end_episode', {
    client_uuid: CLIENT,
    episode_uuid: uuid,
    task_id: HOSTILE,
    workflow_output: { reward: 0.5, metadata: { task_id: HOSTILE, tag: HOSTILE }, log_metrics: { [HOSTILE]: 1 } },
  });
  await visit('tasks', 'tbody tr .chip');
  await visit('episodes', 'tbody tr');
  await visit(`episode/${uuid}?tab=tokens&mode=logprob`, '.tokens .token');
  await visit(`episode/${uuid}?tab=metrics`, 'table.plain tr');
  await visit('log', '.log li');
  for (const view of ['overview', 'training', 'engine', 'runs']) await visit(view, 'main .view');
});

test('the page loads within a second', async (t) => {
  const times = [];
  for (let load = 0; load < 5; load++) {
    const { page } = await open(t, browser, swarm.base);
    const start = Date.now();
    await page.goto(`${swarm.base}/ui`);
    await page.locator('.state-word', { hasText: 'Rolling' }).waitFor();
    await page.locator('.card').first().waitFor();
    times.push(Date.now() - start);
  }
  t.diagnostic(`everything shown after ${times} ms`);
  // The best of five, and only when measured: other programs may take the processor.
  if (process.env.MEASURE) assert.ok(Math.min(...times) < 1000, `${times} ms`);
});
