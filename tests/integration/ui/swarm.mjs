// A real server in a directory of its own, with the programs that run beside it.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { end, freePort, start } from './browser.mjs';

const root = new URL('../../..', import.meta.url).pathname;
const binary = resolve(root, process.env.AJET_SWARM ?? 'target/release/ajet-swarm');

/** Starts a server; `run` runs the program beside it, `stop` ends all and removes the directory. */
export async function startSwarm() {
  const directory = mkdtempSync(join(tmpdir(), 'ajet-ui-'));
  const port = await freePort();
  const base = `http://127.0.0.1:${port}`;
  const children = [];
  const run = (...args) => {
    const child = start(binary, args, { cwd: directory, stdio: 'ignore' });
    children.push(child);
    return child;
  };
  const stop = async () => {
    for (const child of children.splice(0).reverse()) await end(child);
    rmSync(directory, { recursive: true, force: true });
  };
  run('start', `--swarm-port=${port}`);
  await until('the server answers', async () => (await fetch(`${base}/health`).catch(() => null))?.ok);
  return { base, directory, run, stop };
}

/** Waits until `ready` returns a true value, and returns it. */
export async function until(what, ready) {
  for (let tries = 0; tries < 600; tries++) {
    const value = await ready();
    if (value) return value;
    await sleep(50);
  }
  assert.fail(`not within 30 s: ${what}`);
}
