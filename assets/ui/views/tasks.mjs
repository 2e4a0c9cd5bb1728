/** Tasks: the groups of the batch with their rewards side by side. */

import { h, setText } from '../dom.mjs';
import { fixed, number, plural } from '../format.mjs';
import { address, replaceQuery } from '../router.mjs';
import { isUpdating } from '../states.mjs';
import { Table } from '../table.mjs';
import { oneLine } from '../text.mjs';
import { searchField, segmented, startHint } from './view.mjs';

/** @typedef {import('../protocol.mjs').TaskGroup} TaskGroup */

/** What groups can be sorted by. */
const ORDERS = new Map([
  ['mean', mean],
  ['finished', (/** @type {TaskGroup} */ group) => group.episodes.length],
]);
/** Chips of a group at most. */
const CHIPS = 64;

/**
 * @param {import('./view.mjs').App} app
 * @param {import('../router.mjs').Address} place
 * @returns {import('./view.mjs').View}
 */
export function tasks(app, { query }) {
  const state = { only: query.only ?? '', q: query.q ?? '', sort: query.sort ?? '' };
  const range = { low: 0, high: 1 };
  const table = groupTable(range, (id, descending) => change({ sort: `${descending ? '-' : ''}${id}` }));
  const note = h('p', { class: 'muted', role: 'status' });
  const element = h(
    'div',
    { class: 'view tasks' },
    h(
      'div',
      { class: 'toolbar' },
      segmented(
        'Groups',
        [
          ['', 'All'],
          ['signal', 'With signal'],
          ['none', 'Without signal'],
        ],
        state.only,
        (only) => change({ only }),
      ).element,
      searchField('Filter by task', state.q, (q) => change({ q })),
    ),
    note,
    table.element,
  );

  /** @param {Partial<typeof state>} changed */
  function change(changed) {
    Object.assign(state, changed);
    replaceQuery(state);
    update();
  }

  function update() {
    const { status } = app.store;
    if (!status) return;
    const rewards = status.groups.flatMap((group) => group.episodes.map((episode) => episode.reward));
    range.low = rewards.reduce((least, reward) => Math.min(least, reward), 0);
    range.high = rewards.reduce((most, reward) => Math.max(most, reward), range.low < 0 ? 0 : 1e-9);
    const silent = status.groups.filter(isSilent(status.batch.repeats)).length;
    setText(note, noteText(status, silent));
    table.set(chosen(status, state), emptyText(status));
    table.setSort(state.sort.replace('-', ''), state.sort.startsWith('-'));
  }
  return { element, update };
}

/** @param {import('../protocol.mjs').Status} status @param {number} silent Groups without signal. */
function noteText({ groups, engine }, silent) {
  if (groups.length === 0) return '';
  const count = `${plural(groups.length, 'task')} ${isUpdating(engine.status) ? 'in the update' : 'of the batch'}`;
  if (silent === 0) return `${count}.`;
  return `${count}, ${number(silent)} without signal: all rewards are equal, so nothing is learnt from them.`;
}

/**
 * A group counts as without signal when it is complete.
 * @param {number} repeats
 * @returns {(group: TaskGroup) => boolean}
 */
function isSilent(repeats) {
  return (group) => !group.has_signal && group.episodes.length >= Math.max(2, repeats);
}

/** @param {import('../protocol.mjs').Status} status @param {{ only: string, q: string, sort: string }} state */
function chosen({ groups, batch }, { only, q, sort }) {
  const silent = isSilent(batch.repeats);
  const word = q.toLowerCase();
  const rows = groups.filter(
    (group) =>
      group.task_id.toLowerCase().includes(word) &&
      (only === '' || (only === 'signal' ? group.has_signal : silent(group))),
  );
  const order = ORDERS.get(sort.replace('-', ''));
  const sign = sort.startsWith('-') ? -1 : 1;
  return order ? rows.sort((a, b) => sign * (order(a) - order(b))) : rows;
}

/** @param {{ low: number, high: number }} range @param {(id: string, descending: boolean) => void} onSort */
function groupTable(range, onSort) {
  return /** @type {Table<TaskGroup>} */ (
    new Table({
      label: 'Tasks of the batch',
      key: (row) => row.task_id,
      onSort,
      onOpen: (row) => {
        location.hash = address('episodes', { task: row.task_id });
      },
      mark: (row) => (!row.has_signal && row.running === 0 && row.episodes.length > 1 ? 'dim' : ''),
      columns: [
        { id: 'task', label: 'Task', name: true, text: (row) => oneLine(row.task_id, 44) },
        {
          id: 'rewards',
          label: 'Rewards',
          text: (row) => `${range.low} ${range.high} ${row.running} ${row.episodes.map((one) => one.reward)}`,
          paint: (cell, row) => paintChips(cell, row, range),
        },
        { id: 'mean', label: 'Mean', numeric: true, sortable: true, text: (row) => fixed(mean(row)) },
        {
          id: 'finished',
          label: 'Finished',
          numeric: true,
          sortable: true,
          from: 'medium',
          text: (row) => number(row.episodes.length),
        },
        { id: 'running', label: 'Claimed', numeric: true, from: 'medium', text: (row) => number(row.running) },
        {
          id: 'signal',
          label: 'Signal',
          text: (row) => (row.has_signal ? 'yes' : row.episodes.length > 1 ? 'none' : '–'),
          hint: 'Whether the rewards differ',
        },
      ],
    })
  );
}

/** @param {HTMLElement} cell @param {TaskGroup} group @param {{ low: number, high: number }} range */
function paintChips(cell, group, range) {
  const chips = group.episodes.slice(0, CHIPS).map((episode) => {
    const share = (episode.reward - range.low) / (range.high - range.low || 1);
    const chip = h(
      'a',
      {
        class: 'chip',
        href: address('episode', {}, episode.episode_uuid),
        title: `Reward ${fixed(episode.reward)}; opens the episode`,
      },
      fixed(episode.reward, 2),
    );
    chip.style.setProperty('--share', `${Math.round(100 * share)}%`);
    return chip;
  });
  const waiting = Array.from({ length: Math.min(CHIPS, group.running) }, () =>
    h('span', { class: 'chip running', title: 'claimed' }, '…'),
  );
  cell.replaceChildren(
    h('div', { class: 'chips' }, chips, waiting, group.episodes.length > CHIPS && `+${group.episodes.length - CHIPS}`),
  );
}

/** @param {TaskGroup} group */
function mean(group) {
  return group.episodes.length === 0
    ? Number.NaN
    : group.episodes.reduce((sum, episode) => sum + episode.reward, 0) / group.episodes.length;
}

/** @param {import('../protocol.mjs').Status} status */
function emptyText(status) {
  if (status.groups.length > 0) return 'No task matches.';
  return status.engine.status === 'ENGINE.OFFLINE'
    ? `No batch: no engine runs. ${startHint()}`
    : 'No episode of this batch has been claimed with its task yet.';
}
