/** The page: its frame, the shown view, keys, and the form for the token. */

import { fill, h, setText, show } from './dom.mjs';
import { age } from './format.mjs';
import { History } from './history.mjs';
import { GO, HELP, listen } from './keyboard.mjs';
import { address, parse } from './router.mjs';
import { endOf, stateOf, updatesText } from './states.mjs';
import { Store } from './store.mjs';
import { oneLine } from './text.mjs';
import * as theme from './theme.mjs';
import * as token from './token.mjs';
import { engine, recordLoad } from './views/engine.mjs';
import { episode } from './views/episode.mjs';
import { episodes } from './views/episodes.mjs';
import { log, recordLog } from './views/log.mjs';
import { overview } from './views/overview.mjs';
import { runs } from './views/runs.mjs';
import { tasks } from './views/tasks.mjs';
import { training } from './views/training.mjs';

/** @type {Record<string, { title: string, open: import('./views/view.mjs').OpenView }>} */
const VIEWS = {
  overview: { title: 'Overview', open: overview },
  training: { title: 'Training', open: training },
  episodes: { title: 'Episodes', open: episodes },
  tasks: { title: 'Tasks', open: tasks },
  engine: { title: 'Engine', open: engine },
  runs: { title: 'Runs', open: runs },
  log: { title: 'Log', open: log },
};
const EPISODE = { title: 'Episode', open: episode };
const ORDER = Object.keys(VIEWS);
/** Least time between two loads of the history, in milliseconds. */
const HISTORY_PAUSE = 1000;
/** Time between two attempts after a failed one, in milliseconds. */
const HISTORY_RETRY = 5000;

const app = { store: new Store(), history: new History() };
/** @type {import('./views/view.mjs').View | null} */
let view = null;
let title = '';

const frame = buildFrame();
const help = buildHelp();
const login = buildLogin();

theme.restore();
token.takeFromAddress();
/** @type {HTMLElement} */ (document.querySelector('#app')).append(frame.element, help, login.element);
addEventListener('hashchange', openView);
listen(run);
app.store.subscribe(update);
// Ages tick, also when nothing changes.
setInterval(() => app.store.changed(), 1000);
openView();
app.store.start();

/** Opens the view that the address names. */
function openView() {
  if (/^#token=/.test(location.hash)) {
    token.takeFromAddress();
    app.store.start();
  }
  if (location.hash === '#main') return; // the skip link
  const place = parse(location.hash);
  const current = navigated(place);
  const chosen = isEpisode(place) ? EPISODE : VIEWS[current];
  view?.destroy?.();
  view = chosen.open(app, place);
  title = chosen.title;
  document.title = `${title} · ajet-swarm`;
  fill(frame.main, view.element);
  for (const link of frame.links) {
    const is = link.dataset.view === current;
    if (is) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
    if (is) link.parentElement?.scrollTo({ left: link.offsetLeft - 80 });
  }
  scrollTo(0, 0);
  app.store.changed();
}

/** @param {import('./router.mjs').Address} place */
function isEpisode({ view: name, id }) {
  return name === 'episode' && id !== '';
}

/**
 * Returns the entry of the navigation that an address belongs to.
 * @param {import('./router.mjs').Address} place
 */
function navigated(place) {
  if (isEpisode(place)) return 'episodes';
  return ORDER.includes(place.view) ? place.view : 'overview';
}

let historyFor = '';
let historyAt = 0;

/** Shows what has changed. */
function update() {
  const { status, connection } = app.store;
  login.show(connection.state === 'refused');
  showConnection();
  if (!status) return;
  recordLoad(status);
  recordLog(status);
  refreshHistory(status);
  const { engine } = status;
  const lastUpdate = app.history.lastUpdate();
  const end = endOf(engine, lastUpdate, app.store.now());
  const { word, color } = stateOf(engine.status);
  const state = [end?.word ?? word, updatesText(engine, lastUpdate)].filter(Boolean).join(' · ');
  setText(frame.state, state);
  frame.state.style.setProperty('--dot', `var(${color})`);
  document.title = `${title} · ${state} · ajet-swarm`;
  setText(frame.experiment, oneLine(status.experiment?.name ?? 'no experiment', 60));
  view?.update?.();
}

/** @param {import('./protocol.mjs').Status} status */
function refreshHistory({ experiment, engine: state, latest_eval }) {
  if (!experiment) {
    app.history.loaded = true;
    return;
  }
  const isOffline = state.status === 'ENGINE.OFFLINE';
  const wanted = `${experiment?.name} ${state.global_step} ${isOffline} ${latest_eval?.global_step}`;
  const { error } = app.history;
  if ((wanted === historyFor && !error) || document.hidden) return;
  if (Date.now() - historyAt < (error ? HISTORY_RETRY : HISTORY_PAUSE)) return;
  [historyFor, historyAt] = [wanted, Date.now()];
  app.history.refresh().then(() => app.store.changed());
}

function showConnection() {
  const { state, message, since, retryAt } = app.store.connection;
  const lost = state === 'lost';
  show(frame.banner, lost);
  document.body.classList.toggle('stale', lost && app.store.status != null);
  if (!lost) return setText(frame.live, state === 'live' ? 'live' : state === 'connecting' ? 'connecting…' : '');
  setText(frame.live, 'not connected');
  const retry = Math.max(0, (retryAt - Date.now()) / 1000);
  const duration = age((Date.now() - since) / 1000);
  const seen = app.store.status ? ' What you see is as it was then.' : '';
  const next = retry > 0 ? `Next attempt in ${Math.ceil(retry)} s.` : 'Connecting…';
  setText(frame.banner, `Not connected for ${duration}: ${oneLine(message, 200)}.${seen} ${next}`);
}

/**
 * Runs a command of the keyboard.
 * @param {string} command
 * @returns {boolean} Whether it did something.
 */
function run(command) {
  // By the address: the view itself changes a moment later.
  const place = ORDER.indexOf(navigated(parse(location.hash)));
  switch (command) {
    case 'help':
      return toggleHelp();
    case 'theme':
      theme.toggle();
      return true;
    case 'search':
      return focusSearch();
    case 'previous-view':
      return go(ORDER[(place + ORDER.length - 1) % ORDER.length]);
    case 'next-view':
      return go(ORDER[(place + 1) % ORDER.length]);
    case 'step-back':
      return view?.step?.(-1) ?? false;
    case 'step-on':
      return view?.step?.(1) ?? false;
    case 'back':
      return goBack();
    default:
      return go(command.replace('view:', ''));
  }
}

/** @param {string} name */
function go(name) {
  location.hash = address(name);
  return true;
}

function goBack() {
  const goes = isEpisode(parse(location.hash));
  if (goes) history.back();
  return goes;
}

function toggleHelp() {
  if (help.open) help.close();
  else help.showModal();
  return true;
}

function focusSearch() {
  const field = /** @type {HTMLElement | null} */ (frame.main.querySelector('.search'));
  field?.focus();
  return field != null;
}

function buildFrame() {
  const keys = new Map([...GO].map(([key, name]) => [name, key]));
  const links = ORDER.map((name) =>
    h('a', { href: address(name), 'data-view': name, title: `Keys: g ${keys.get(name)}` }, VIEWS[name].title),
  );
  const state = h('span', { class: 'state-pill' }, '…');
  const experiment = h('span', { class: 'ellipsis experiment' });
  const live = h('span', { class: 'muted live' }, 'connecting…');
  const banner = h('p', { class: 'banner', role: 'alert', hidden: true });
  const main = h('main', { id: 'main', tabindex: -1 });
  const buttons = h(
    'span',
    { class: 'buttons' },
    h(
      'button',
      {
        type: 'button',
        class: 'quiet',
        onclick: theme.toggle,
        title: 'Dark or light (d)',
        'aria-label': 'Switch between dark and light',
      },
      '◐',
    ),
    h(
      'button',
      { type: 'button', class: 'quiet', onclick: toggleHelp, title: 'Keys (?)', 'aria-label': 'Show the keys' },
      '?',
    ),
  );
  const element = h(
    'div',
    { class: 'frame' },
    h(
      'header',
      {},
      h('a', { class: 'brand', href: address('overview') }, 'ajet-swarm'),
      experiment,
      state,
      live,
      buttons,
    ),
    h('nav', { 'aria-label': 'Views' }, links),
    h('div', { class: 'content' }, banner, main),
  );
  return { element, links, state, experiment, live, banner, main };
}

function buildHelp() {
  const close = h('button', { type: 'button', onclick: () => dialog.close() }, 'Close');
  const dialog = h(
    'dialog',
    { class: 'help', 'aria-label': 'Keys' },
    h('h2', {}, 'Keys'),
    h(
      'dl',
      {},
      HELP.map(([key, what]) => [
        h(
          'dt',
          {},
          key
            .split(' ')
            .filter(Boolean)
            .map((one) => h('kbd', {}, one)),
        ),
        h('dd', {}, what),
      ]).flat(),
    ),
    close,
  );
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog) dialog.close();
  });
  return dialog;
}

function buildLogin() {
  const input = h('input', { type: 'password', id: 'token', autocomplete: 'off', spellcheck: 'false', required: true });
  const note = h('p', { class: 'muted', role: 'status' });
  const form = h(
    'form',
    {
      onsubmit: (/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        token.save(input.value);
        input.value = '';
        setText(note, 'That token was not accepted.');
        app.store.start();
      },
    },
    h('h2', {}, 'This server requires its access token'),
    h(
      'p',
      { class: 'muted' },
      'The server printed it when it started, or it is in the file of --token-file. It stays in this tab.',
    ),
    h('label', { for: 'token' }, 'Access token'),
    input,
    h('button', { type: 'submit', class: 'primary' }, 'Open'),
    note,
  );
  const element = h('div', { class: 'login', hidden: true }, form);
  return {
    element,
    /** @param {boolean} shown */
    show(shown) {
      const opens = shown && element.hidden;
      show(element, shown);
      if (opens) input.focus();
    },
  };
}
