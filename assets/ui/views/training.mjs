/** Training: the curves of all metrics. */

import { Chart } from '../charts.mjs';
import { h, setText, show } from '../dom.mjs';
import { number } from '../format.mjs';
import { replaceQuery } from '../router.mjs';
import { band, last, positive, smooth } from '../series.mjs';
import { oneLine } from '../text.mjs';
import { searchField, startHint } from './view.mjs';

/** Order of the groups: what tells learning first. */
const GROUPS = [
  { title: 'Reward', has: /^(reward_|success_rate)/ },
  { title: 'Evaluation', has: /^eval\// },
  {
    title: 'Policy',
    has: /^(entropy|kl|grad_norm|clip_|response_length|truncated|mismatch|ratio_|advantage_|lr$|optimizer|skipped)/,
  },
  {
    title: 'Loss',
    note: 'The loss of GRPO stays around 0, since the advantages of a group sum to 0: look at reward and evaluation.',
    has: /^(loss|pg_loss)/,
  },
  {
    title: 'Episodes and lengths',
    has: /^(episodes|tasks|dummy_|rows|prompt_|response_|llm_calls|prefix_|counts\/|dropped\/)/,
  },
  { title: 'Time and speed', has: /^(seconds\/|tokens_|peak_memory|export_)/ },
  { title: 'Clients and others', has: /./ },
];

/** Beginnings of the names that come first in their group. */
const FIRST = [
  'reward_mean',
  'success_rate',
  'eval/reward_mean',
  'entropy',
  'kl',
  'grad_norm',
  'clip_',
  'response_length',
  'truncated',
];

/** @param {string} key */
function rank(key) {
  const place = FIRST.findIndex((beginning) => key.startsWith(beginning));
  return place < 0 ? FIRST.length : place;
}

/**
 * @param {import('./view.mjs').App} app
 * @param {import('../router.mjs').Address} place
 * @returns {import('./view.mjs').View}
 */
export function training(app, { query }) {
  const options = { filter: query.q ?? '', log: query.log === '1', weight: Number(query.smooth ?? 0) || 0 };
  /** @type {Map<string, ReturnType<typeof card>>} */
  const cards = new Map();
  const visible = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        const shown = [...cards.values()].find((one) => one.element === entry.target);
        if (shown) shown.inView = entry.isIntersecting;
      }
      draw();
    },
    { rootMargin: '300px' },
  );
  const sections = GROUPS.map(({ title, note }) =>
    h(
      'section',
      { class: 'metric-group' },
      h('h2', {}, title),
      note && h('p', { class: 'muted' }, note),
      h('div', { class: 'grid' }),
    ),
  );
  const empty = h('p', { class: 'empty' });
  const smoothing = h('input', {
    type: 'range',
    min: 0,
    max: 0.98,
    step: 0.02,
    value: options.weight,
    oninput: () => change({ weight: Number(smoothing.value) }),
  });
  const logarithmic = h('input', {
    type: 'checkbox',
    checked: options.log,
    onchange: () => change({ log: logarithmic.checked }),
  });
  const element = h(
    'div',
    { class: 'view training' },
    h(
      'div',
      { class: 'toolbar' },
      searchField('Filter metrics, such as reward or seconds/', options.filter, (filter) => change({ filter })),
      h('label', {}, 'Smoothing', smoothing),
      h('label', {}, logarithmic, 'Log scale'),
    ),
    empty,
    sections,
  );

  /** @param {Partial<typeof options>} changed */
  function change(changed) {
    Object.assign(options, changed);
    replaceQuery({ q: options.filter, log: options.log ? 1 : '', smooth: options.weight || '' });
    for (const one of cards.values()) one.drawn = '';
    update();
  }

  function update() {
    const keys = app.history.keys().filter((key) => matches(key, options.filter));
    const added = keys.filter((key) => !cards.has(key)).sort((a, b) => rank(a) - rank(b));
    for (const key of added) add(key);
    for (const [key, one] of cards) show(one.element, keys.includes(key));
    for (const section of sections) show(section, section.querySelector('.metric:not([hidden])') != null);
    show(empty, keys.length === 0);
    setText(empty, emptyText(app, options.filter));
    draw();
  }

  /** @param {string} key */
  function add(key) {
    const one = card(key);
    cards.set(key, one);
    sections[GROUPS.findIndex((group) => group.has.test(key))].lastElementChild?.append(one.element);
    visible.observe(one.element);
  }

  function draw() {
    for (const [key, one] of cards) if (one.inView && !one.element.hidden) one.draw(app.history, key, options);
  }

  return {
    element,
    update,
    destroy() {
      visible.disconnect();
      for (const one of cards.values()) one.chart.destroy();
    },
  };
}

/** @param {string} key */
function card(key) {
  const name = oneLine(key, 80);
  const chart = new Chart({ height: 130, title: name, sync: 'training' });
  const value = h('b', { class: 'number' });
  const grow = h(
    'button',
    { type: 'button', class: 'quiet', 'aria-pressed': 'false', title: 'Larger or smaller' },
    '⤢',
  );
  const element = h(
    'article',
    { class: 'metric' },
    h('h3', {}, h('span', { class: 'ellipsis' }, name), value, grow),
    chart.element,
  );
  grow.addEventListener('click', () => {
    const large = element.classList.toggle('large');
    grow.setAttribute('aria-pressed', String(large));
    chart.setHeight(large ? 360 : 130);
  });
  return {
    element,
    chart,
    inView: false,
    drawn: '',
    /**
     * @param {import('../history.mjs').History} history
     * @param {string} metric
     * @param {{ log: boolean, weight: number }} options
     */
    draw(history, metric, { log, weight }) {
      const values = history.column(metric);
      const { run, steps } = history;
      const state = `${run} ${steps.length} ${steps.at(-1)} ${last(values ?? [])} ${log} ${weight}`;
      if (!values || state === this.drawn) return;
      this.drawn = state;
      setText(value, number(last(values)));
      chart.setLog(log);
      chart.set(history.steps, linesOf(history, metric, log ? positive(values) : values, log, weight));
    },
  };
}

/**
 * @param {import('../history.mjs').History} history @param {string} metric
 * @param {import('../series.mjs').Values} values @param {boolean} log @param {number} weight
 * @returns {import('../charts.mjs').Line[]}
 */
function linesOf(history, metric, values, log, weight) {
  if (metric.startsWith('eval/')) return [{ label: metric, values, kind: 'line' }];
  const spread = metric === 'reward_mean' && !log ? band((name) => history.column(name), 'reward_') : null;
  if (!(weight > 0)) return [{ label: metric, values, ...(spread ? { band: spread } : {}) }];
  return [
    { label: 'each step', values, kind: 'thin', color: '--faint' },
    { label: 'smoothed', values: smooth(values, weight) },
  ];
}

/** @param {string} key @param {string} filter Words, all of which must occur. */
function matches(key, filter) {
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((word) => key.toLowerCase().includes(word));
}

/** @param {import('./view.mjs').App} app @param {string} filter */
function emptyText({ history, store }, filter) {
  if (history.error) return `Cannot load the metrics: ${oneLine(history.error, 300)}`;
  if (!history.loaded) return 'Loading…';
  if (filter && history.keys().length > 0) return `No metric matches “${oneLine(filter, 60)}”.`;
  return store.status?.experiment
    ? 'No metrics yet: they come with the first update or evaluation.'
    : `No experiment yet. ${startHint()}`;
}
