// Chromium, the server of the fixture, and pages that collect everything that goes wrong in them.

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

/** Starts the fixture; `stop` ends it. */
export async function serve(port, ...args) {
  const script = new URL('fixture.py', import.meta.url).pathname;
  const child = spawn('python3', [script, String(port), ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  await once(child.stdout, 'data');
  return {
    base: `http://127.0.0.1:${port}`,
    async stop() {
      child.kill();
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    },
  };
}

/** Opens a page; `problems` are its console messages, errors, dialogs, and requests to other hosts. */
export async function open(browser, base, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, ...options });
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
  return { page, problems, close: () => context.close() };
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
