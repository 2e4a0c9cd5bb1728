// Chromium, the server of the fixture, and pages that collect everything that goes wrong in them.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';

const { chromium } = await import(process.env.PLAYWRIGHT);

export const EPISODE = '00000003-5f1e-4a7c-9d2b-0123456789ab';
export const VIEWS = [
  'overview',
  'training',
  'episodes',
  'episodes?show=running',
  'tasks',
  'engine',
  'runs',
  'log',
  `episode/${EPISODE}`,
  `episode/${EPISODE}?tab=tokens&mode=advantage`,
  `episode/${EPISODE}?tab=metrics`,
];

export function launch() {
  // Containers run tests as root, where Chromium's sandbox does not start.
  const args = process.getuid() === 0 ? ['--no-sandbox'] : [];
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args });
}

export async function freePort() {
  const listener = createServer().listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port } = listener.address();
  listener.close();
  return port;
}

/** Starts a program that does not outlive this process. */
export function start(program, args, options) {
  const child = spawn(program, args, options);
  process.on('exit', () => child.kill());
  return child;
}

/** Ends a program, which may have ended by itself. */
export async function end(child) {
  child.kill();
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
}

/** Starts the fixture; `stop` ends it. */
export async function serve(port, ...args) {
  const script = new URL('fixture.py', import.meta.url).pathname;
  const child = start('python3', [script, String(port), ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = once(child, 'exit').then(([code]) => assert.fail(`the fixture ended with ${code}`));
  await Promise.race([once(child.stdout, 'data'), ended]);
  ended.catch(() => {}); // Later, its end is what `stop` is for.
  return { base: `http://127.0.0.1:${port}`, stop: () => end(child) };
}

/** Opens a page until the test `t` ends; `problems` are its console messages, errors, dialogs, and requests to other hosts. */
export async function open(t, browser, base, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, ...options });
  t.after(() => context.close());
  const page = await context.newPage();
  const problems = [];
  page.on('console', (message) => problems.push(`console: ${message.text()}`));
  page.on('pageerror', (error) => problems.push(`error: ${error.stack}`));
  page.on('dialog', (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on('request', (request) => {
    if (!request.url().startsWith(base)) problems.push(`request: ${request.url()}`);
  });
  return { page, problems };
}

/** Goes to a view, and returns when the page has opened it; its data may still be on the way. */
export async function openView(page, base, view) {
  if (!page.url().startsWith(`${base}/ui`)) return page.goto(`${base}/ui#/${view}`);
  await page.evaluate(
    (hash) =>
      new Promise((opened) => {
        if (location.hash === hash) return opened();
        // The page's own listener is older than this one, so it has run when this one does.
        addEventListener('hashchange', () => opened(), { once: true });
        location.hash = hash;
      }),
    `#/${view}`,
  );
}

/** Starts a server of the fixture until the test `t` ends. */
export async function serveFor(t, port, ...args) {
  const server = await serve(port, ...args);
  t.after(server.stop);
  return server;
}

/** What foreign text has done to a page: its title, elements, links, and hidden characters that it shows. */
export function harm(page) {
  return page.evaluate(() => {
    const hidden =
      /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u202a-\u202e\u2066-\u2069\ufeff]|[\u{e0000}-\u{e007f}]/u;
    const elements = [...document.querySelectorAll('img, iframe, object, body script, [onerror]')];
    const links = [...document.querySelectorAll('a')].map((link) => link.getAttribute('href') ?? '');
    return [
      ...(/ · ajet-swarm$/.test(document.title) ? [] : [document.title]),
      ...elements.map((element) => element.outerHTML),
      ...links.filter((href) => !href.startsWith('#')),
      ...(hidden.exec(document.body.textContent) ?? []).map(
        (character) => `U+${character.codePointAt(0).toString(16)}`,
      ),
    ];
  });
}
