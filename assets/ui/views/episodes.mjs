/** Episodes: finished ones, sorted, filtered and paged by the server, and running ones live. */

import { getJson } from '../api.mjs';
import { h, setText, show } from '../dom.mjs';
import { age, compact, duration, fixed, number, plural, shortId, time } from '../format.mjs';
import { address, replaceQuery } from '../router.mjs';
import { Table } from '../table.mjs';
import { oneLine } from '../text.mjs';
import { messageOf, searchField, segmented } from './view.mjs';

/** @typedef {import('../protocol.mjs').EpisodeSummary} EpisodeSummary */
/** @typedef {import('../protocol.mjs').RunningEpisode} RunningEpisode */

const PAGE = 100;
/** Time between two loads of a page that follows the training, in milliseconds. */
const FOLLOW_PAUSE = 2000;

/** What is shown, as in the address. */
const DEFAULTS = {
  show: 'finished',
  type: 'train',
  step: '',
  q: '',
  task: '',
  client: '',
  run: '',
  sort: '-ended',
  offset: '0',
};

/**
 * @param {import('./view.mjs').App} app
 * @param {import('../router.mjs').Address} place
 * @returns {import('./view.mjs').View}
 */
export function episodes(app, { query }) {
  const state = { ...DEFAULTS, ...query };
  const finished = finishedTable(state.run, (id, descending) => change({ sort: `${descending ? '-' : ''}${id}` }));
  const running = runningTable(app);
  const fields = filterFields(state, change);
  const note = h('p', { class: 'muted', role: 'status' }, 'Loading…');
  const previous = h('button', { type: 'button', onclick: () => turn(-1) }, '← Previous');
  const next = h('button', { type: 'button', onclick: () => turn(1) }, 'Next →');
  const pager = h('div', { class: 'pager' }, previous, note, next);
  const which = /** @type {[string, string][]} */ ([
    ['finished', 'Finished'],
    ['running', 'Running'],
  ]);
  const element = h(
    'div',
    { class: 'view episodes' },
    h(
      'div',
      { class: 'toolbar' },
      segmented('Which', which, state.show, (shown) => change({ show: shown })).element,
      searchField('Filter this list', state.q, (q) => change({ q, offset: state.offset }, false)),
      state.task &&
        h(
          'span',
          { class: 'ellipsis' },
          `of task ${oneLine(state.task, 60)} `,
          h('a', { href: address('episodes', { run: state.run }) }, 'show all tasks'),
        ),
      state.run &&
        h('span', {}, `of ${oneLine(state.run, 60)} `, h('a', { href: address('episodes') }, 'show the current run')),
    ),
    fields,
    finished.element,
    running.element,
    pager,
  );
  let aborter = new AbortController();
  let isDue = true;
  /** @type {import('../protocol.mjs').Episodes} The page of the server, before the filter. */
  let loaded = { episodes: [], total: 0 };
  let loadedFor = '';
  let loadedAt = 0;

  /** @param {Partial<typeof state>} changed @param {boolean} [asks] Whether the server must be asked again. */
  function change(changed, asks = true) {
    Object.assign(state, { offset: '0' }, changed);
    const defaults = new Map(Object.entries(DEFAULTS));
    replaceQuery(Object.fromEntries(Object.entries(state).filter(([name, value]) => value !== defaults.get(name))));
    if (asks) isDue = true;
    else showPage(loaded);
    update();
  }

  /** @param {1 | -1} by Pages. */
  function turn(by) {
    if (state.show === 'running' || (by < 0 ? previous : next).disabled) return false;
    change({ offset: String(Math.max(0, Number(state.offset) + by * PAGE)) });
    finished.focus();
    return true;
  }

  async function load() {
    aborter.abort();
    aborter = new AbortController();
    const { signal } = aborter;
    const { show: _, q: __, type, ...filters } = state;
    try {
      const query = { ...filters, type: type === 'all' ? '' : type, limit: PAGE };
      showPage(await getJson('/episodes', { query, signal }));
    } catch (error) {
      if (!signal.aborted) setText(note, `Cannot load the episodes: ${oneLine(messageOf(error), 300)}`);
    }
  }

  /** @param {import('../protocol.mjs').Episodes} page */
  function showPage(page) {
    loaded = page;
    const { episodes: all, total } = page;
    const rows = all.filter((row) => matches(row, state.q));
    const first = Number(state.offset);
    const shown = rows.length < all.length ? `${number(rows.length)} match; ` : '';
    const range = `${shown}${number(first + 1)} to ${number(first + all.length)}`;
    finished.set(rows, 'No finished episode matches. Change the filters, or look at the running ones.');
    finished.setSort(state.sort.replace('-', ''), state.sort.startsWith('-'));
    setText(note, total === 0 ? '' : `${range} of ${plural(total, 'episode')}`);
    previous.disabled = first === 0;
    next.disabled = first + PAGE >= total;
  }

  function update() {
    const isRunning = state.show === 'running';
    for (const part of [finished.element, fields, previous, next]) show(part, !isRunning);
    show(running.element, isRunning);
    const { status } = app.store;
    if (!status) return;
    if (isRunning) showRunning(status);
    else if (!status.experiment && !state.run) showPage({ episodes: [], total: 0 });
    else if (isDue || followsNow(status)) {
      isDue = false;
      loadedAt = Date.now();
      load();
    }
  }

  /**
   * The first page of the newest follows the training; other pages stand still while somebody reads them.
   * @param {import('../protocol.mjs').Status} status
   */
  function followsNow({ engine }) {
    const follows = state.offset === '0' && state.sort === '-ended' && !document.hidden;
    const current = `${engine.global_step} ${engine.status}`;
    if (!follows || current === loadedFor || Date.now() - loadedAt < FOLLOW_PAUSE) return false;
    loadedFor = current;
    return true;
  }

  /** @param {import('../protocol.mjs').Status} status */
  function showRunning(status) {
    const rows = status.running.filter((one) => matches(one, state.q));
    const none = 'No episode runs. Agents claim them while the engine is rolling.';
    const { running_total, claimed_total } = status;
    const all = running_total + claimed_total;
    running.set(rows, all === 0 ? none : 'No running episode matches.');
    const more = all - status.running.length;
    const claimed = claimed_total > 0 ? `; ${number(claimed_total)} of all only claimed` : '';
    const unlisted = more > 0 ? `; ${number(more)} more not listed` : '';
    setText(note, `${plural(rows.length, 'episode')}${claimed}${unlisted}`);
  }

  return { element, update, step: turn, destroy: () => aborter.abort() };
}

/** @param {RunningEpisode | EpisodeSummary} episode @param {string} text Part of what the row says. */
function matches(episode, text) {
  const { task_id, client_uuid, episode_uuid } = episode;
  const more = 'ended' in episode ? `${episode.tag ?? ''} ${episode.dropped ?? ''}` : '';
  return `${task_id} ${client_uuid} ${episode_uuid} ${more}`.toLowerCase().includes(text.toLowerCase());
}

/**
 * Filters of the finished episodes besides the task.
 * @param {typeof DEFAULTS} state
 * @param {(changed: Partial<typeof DEFAULTS>) => void} change
 */
function filterFields(state, change) {
  const types = /** @type {[string, string][]} */ ([
    ['train', 'Train'],
    ['eval', 'Eval'],
    ['all', 'All'],
  ]);
  /** @param {'step' | 'client'} name @param {string} type */
  const field = (name, type) => {
    const onchange = () => change({ [name]: input.value.trim() });
    const input = h('input', { type, min: 0, value: state[name], placeholder: 'any', onchange });
    return input;
  };
  return h(
    'div',
    { class: 'toolbar fields' },
    segmented('Type', types, state.type, (type) => change({ type })).element,
    h('label', {}, 'Step', field('step', 'number')),
    h('label', {}, 'Client id', field('client', 'search')),
  );
}

/** @param {string} run @param {(id: string, descending: boolean) => void} onSort */
function finishedTable(run, onSort) {
  return /** @type {Table<EpisodeSummary>} */ (
    new Table({
      label: 'Finished episodes',
      key: (row) => row.episode_uuid,
      onSort,
      onOpen: (row) => {
        location.hash = address('episode', { run }, row.episode_uuid);
      },
      mark: (row) => (row.dropped ? 'dim' : ''),
      columns: [
        { id: 'ended', label: 'Ended', sortable: true, text: (row) => time(row.ended) },
        { id: 'step', label: 'Step', numeric: true, from: 'medium', text: (row) => number(row.global_step) },
        { id: 'type', label: 'Type', from: 'medium', text: (row) => row.episode_type },
        { id: 'task', label: 'Task', name: true, text: (row) => oneLine(row.task_id || '–', 60) },
        { id: 'reward', label: 'Reward', numeric: true, sortable: true, text: (row) => fixed(row.reward) },
        {
          id: 'success',
          label: 'Success',
          from: 'medium',
          text: (row) => (row.is_success == null ? '–' : row.is_success ? 'yes' : 'no'),
        },
        {
          id: 'calls',
          label: 'Calls',
          numeric: true,
          sortable: true,
          from: 'medium',
          text: (row) => number(row.llm_calls),
        },
        {
          id: 'tokens',
          label: 'Tokens',
          numeric: true,
          sortable: true,
          text: (row) => compact(row.completion_tokens),
          hint: 'Sampled tokens',
        },
        { id: 'seconds', label: 'Time', numeric: true, from: 'medium', text: (row) => duration(row.seconds) },
        { id: 'client', label: 'Client', from: 'wide', text: (row) => oneLine(shortId(row.client_uuid), 24) },
        { id: 'tag', label: 'Tag', from: 'wide', text: (row) => oneLine(row.tag ?? '', 24) },
        { id: 'dropped', label: 'Dropped', from: 'wide', text: (row) => oneLine(row.dropped ?? '', 24) },
      ],
    })
  );
}

/** @param {import('./view.mjs').App} app */
function runningTable(app) {
  return /** @type {Table<RunningEpisode>} */ (
    new Table({
      label: 'Running episodes',
      key: (row) => row.episode_uuid,
      onOpen: (row) => {
        location.hash = address('episode', {}, row.episode_uuid);
      },
      mark: (row) => (row.idle > row.patience / 2 ? 'warn' : ''),
      columns: [
        { id: 'task', label: 'Task', name: true, text: (row) => oneLine(row.task_id || shortId(row.episode_uuid), 60) },
        { id: 'type', label: 'Type', from: 'medium', text: (row) => row.episode_type },
        { id: 'age', label: 'Age', numeric: true, text: (row) => age(app.store.now() - row.claimed) },
        { id: 'calls', label: 'Calls', numeric: true, text: (row) => number(row.llm_calls), hint: 'LLM calls so far' },
        {
          id: 'tokens',
          label: 'Tokens',
          numeric: true,
          text: (row) => compact(row.completion_tokens),
          hint: 'Sampled tokens so far',
        },
        {
          id: 'idle',
          label: 'Idle',
          hint: 'Time without an LLM call, of the time after which it is discarded',
          text: idleText,
          paint: paintIdle,
        },
        { id: 'client', label: 'Client', from: 'wide', text: (row) => oneLine(shortId(row.client_uuid), 24) },
      ],
    })
  );
}

/** @param {RunningEpisode} row */
function idleText(row) {
  if (row.calls_in_flight > 0) return 'sampling';
  const idle = `${age(row.idle)} of ${duration(row.patience)}`;
  return row.llm_calls === 0 ? `claimed, ${idle}` : idle;
}

/** @param {HTMLElement} cell @param {RunningEpisode} row */
function paintIdle(cell, row) {
  const bar = h('meter', {
    min: 0,
    max: 1,
    value: row.patience > 0 ? Math.min(1, row.idle / row.patience) : 0,
    'aria-hidden': 'true',
  });
  cell.replaceChildren(...(row.calls_in_flight > 0 ? [] : [bar]), idleText(row));
}
