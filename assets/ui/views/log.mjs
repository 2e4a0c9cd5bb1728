/** Log: recent lines, live. */

import { h, reconcile, setText, show } from '../dom.mjs';
import { number, plural, time } from '../format.mjs';
import { replaceQuery } from '../router.mjs';
import { clip, oneLine, visible } from '../text.mjs';
import { searchField } from './view.mjs';

/** @typedef {{ id: string, timestamp: number, tag: string, message: string }} Line */

/** Lines that the page keeps. */
const KEPT = 2000;

/** @type {Map<string, Line>} Lives as long as the page: the server keeps fewer lines. */
const lines = new Map();

/**
 * Keeps new lines. Called with every status, whichever view is shown.
 * @param {import('../protocol.mjs').Status} status
 */
export function recordLog({ log }) {
  for (const { timestamp, tag, message } of log) {
    const id = `${timestamp} ${tag} ${message}`;
    if (!lines.has(id)) lines.set(id, { id, timestamp, tag, message });
  }
  for (const id of lines.keys()) {
    if (lines.size <= KEPT) break;
    lines.delete(id);
  }
}

/**
 * @param {import('./view.mjs').App} app
 * @param {import('../router.mjs').Address} place
 * @returns {import('./view.mjs').View}
 */
export function log(app, { query }) {
  let filter = query.q ?? '';
  let follows = true;
  const list = h('ol', {
    class: 'log',
    tabindex: 0,
    'aria-label': 'Log',
    onscroll: () => {
      follows = list.scrollTop + list.clientHeight >= list.scrollHeight - 8;
      show(toEnd, !follows);
    },
  });
  const toEnd = h(
    'button',
    {
      type: 'button',
      hidden: true,
      onclick: () => {
        list.scrollTop = list.scrollHeight;
      },
    },
    '↓ Newest',
  );
  const note = h('span', { class: 'muted' });
  const empty = h('p', { class: 'empty' });
  const element = h(
    'div',
    { class: 'view log-view' },
    h(
      'div',
      { class: 'toolbar' },
      searchField('Filter by tag or text', filter, (text) => {
        filter = text;
        replaceQuery({ q: filter });
        update();
      }),
      note,
      toEnd,
    ),
    empty,
    list,
  );

  function update() {
    const word = filter.toLowerCase();
    const found = [...lines.values()]
      .filter((line) => `${line.tag} ${line.message}`.toLowerCase().includes(word))
      // Clients send their lines later than they wrote them.
      .sort((a, b) => a.timestamp - b.timestamp);
    reconcile(
      list,
      found,
      (line) => line.id,
      create,
      () => {},
    );
    setText(note, `${number(found.length)} of ${plural(lines.size, 'line')}`);
    show(empty, found.length === 0);
    setText(
      empty,
      lines.size === 0 ? 'Nothing has been logged yet. The engine and its clients write here.' : 'No line matches.',
    );
    if (follows) list.scrollTop = list.scrollHeight;
  }
  return { element, update };
}

/** @param {Line} line */
function create({ timestamp, tag, message }) {
  return h(
    'li',
    {},
    h('time', {}, time(timestamp)),
    h('span', { class: 'tag ellipsis' }, oneLine(tag, 30)),
    h('span', { class: 'line' }, clip(visible(message), 4000)),
  );
}
