/** Runs side by side: a metric of several experiments over each other, and their last values. */

import { getJson } from '../api.mjs';
import { Chart, legend } from '../charts.mjs';
import { fill, h, setText, show } from '../dom.mjs';
import { fixed, number, time } from '../format.mjs';
import { History } from '../history.mjs';
import { address, replaceQuery } from '../router.mjs';
import { last } from '../series.mjs';
import { oneLine } from '../text.mjs';
import { messageOf, panel, startHint } from './view.mjs';

/** @typedef {import('../protocol.mjs').Run} Run */

/** Runs that are compared at most: as many as there are colours. */
const COLORS = ['--run-1', '--run-2', '--run-3', '--run-4', '--run-5', '--run-6'];
const FIRST_METRIC = 'reward_mean';

/**
 * @param {import('./view.mjs').App} app
 * @param {import('../router.mjs').Address} place
 * @returns {import('./view.mjs').View}
 */
export function runs(app, { query }) {
  /** @type {Map<string, History>} */
  const chosen = new Map();
  /** @type {Run[]} */
  let known = [];
  let metric = query.metric ?? FIRST_METRIC;
  let ended = false;
  const list = h('div', { class: 'run-list' });
  const note = h('p', { class: 'empty', role: 'status' }, 'Loading…');
  const select = h('select', {
    onchange: () => {
      metric = select.value;
      remember();
      draw();
    },
  });
  const chart = new Chart({ height: 320, title: 'Metric by step and run' });
  const key = h('div');
  const values = h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Last values' });
  const element = h(
    'div',
    { class: 'view runs' },
    panel('Experiments of this server', note, list),
    panel('Curves', h('div', { class: 'toolbar' }, h('label', {}, 'Metric', select)), chart.element, key),
    panel('Last values', values),
  );

  async function load() {
    try {
      /** @type {import('../protocol.mjs').Runs} */
      const answer = await getJson('/runs');
      known = answer.runs;
    } catch (error) {
      return setText(note, `Cannot load the runs: ${oneLine(messageOf(error), 300)}`);
    }
    setText(note, `No experiment yet. ${startHint()}`);
    show(note, known.length === 0);
    const asked = query.runs ? query.runs.split(',').map(decodeURIComponent) : known.slice(0, 2).map((run) => run.name);
    for (const name of asked.slice(0, COLORS.length)) choose(name);
    drawList();
  }

  /** @param {string} name */
  function choose(name) {
    const history = new History(name);
    chosen.set(name, history);
    history.refresh().then(() => {
      if (!ended) draw();
    });
  }

  /** @param {string} name @param {boolean} wanted */
  function toggle(name, wanted) {
    if (wanted) choose(name);
    else chosen.delete(name);
    remember();
    drawList();
    draw();
  }

  function remember() {
    replaceQuery({
      runs: [...chosen.keys()].map(encodeURIComponent).join(','),
      metric: metric === FIRST_METRIC ? '' : metric,
    });
  }

  function drawList() {
    fill(
      list,
      known.map((run) => {
        const index = [...chosen.keys()].indexOf(run.name);
        const box = h('input', {
          type: 'checkbox',
          checked: index >= 0,
          disabled: index < 0 && chosen.size >= COLORS.length,
          onchange: () => toggle(run.name, box.checked),
        });
        const swatch = h('span', { class: 'key key-line', 'aria-hidden': 'true' });
        if (index >= 0) swatch.style.setProperty('--key', `var(${COLORS[index]})`);
        return h(
          'label',
          { class: 'run' },
          box,
          swatch,
          h('b', { class: 'ellipsis' }, oneLine(run.name, 80)),
          h(
            'span',
            { class: 'muted ellipsis' },
            `${run.current ? 'running · ' : ''}${oneLine(run.model ?? 'unknown model', 60)}`,
          ),
          h(
            'span',
            { class: 'muted number' },
            `step ${number(run.last_step)} · reward ${fixed(run.reward_mean)} · ${time(run.changed)} · `,
            h('a', { href: address('episodes', { run: run.name }) }, 'episodes'),
          ),
        );
      }),
    );
  }

  function draw() {
    const shown = [...chosen].filter(([, history]) => history.loaded);
    const keys = [...new Set(shown.flatMap(([, history]) => history.keys()))].sort();
    fill(
      select,
      (keys.includes(metric) ? keys : [metric, ...keys]).map((name) => h('option', { value: name }, oneLine(name, 80))),
    );
    select.value = metric;
    const steps = [...new Set(shown.flatMap(([, history]) => history.steps))].sort((a, b) => a - b);
    const lines = shown.map(([name, history]) => ({
      label: oneLine(name, 40),
      values: aligned(steps, history, metric),
      color: COLORS[[...chosen.keys()].indexOf(name)],
    }));
    if (steps.length > 0) chart.set(steps, lines);
    fill(key, legend(lines.map(({ label, color }) => ({ label, color: color ?? '--muted' }))));
    fill(values, valueTable(shown, keys));
  }

  load();
  return {
    element,
    destroy() {
      ended = true;
      chart.destroy();
    },
  };
}

/**
 * Values of a metric at these steps.
 * @param {number[]} steps @param {History} history @param {string} metric
 */
function aligned(steps, history, metric) {
  const column = history.column(metric);
  const places = new Map(history.steps.map((step, index) => [step, index]));
  return steps.map((step) => column?.[places.get(step) ?? -1] ?? null);
}

/** @param {[string, History][]} shown @param {string[]} keys */
function valueTable(shown, keys) {
  if (shown.length === 0) return h('p', { class: 'empty' }, 'Choose runs above.');
  const errors = shown
    .filter(([, history]) => history.error)
    .map(([name, history]) => h('p', { class: 'empty' }, `${oneLine(name, 80)}: ${oneLine(history.error, 200)}`));
  return [
    ...errors,
    h(
      'table',
      { class: 'plain' },
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          h('th', { scope: 'col' }, 'Metric'),
          shown.map(([name]) => h('th', { scope: 'col', class: 'number' }, oneLine(name, 40))),
        ),
      ),
      h(
        'tbody',
        {},
        keys.map((key) =>
          h(
            'tr',
            {},
            h('th', { scope: 'row' }, oneLine(key, 80)),
            shown.map(([, history]) => h('td', { class: 'number' }, number(last(history.column(key) ?? [])))),
          ),
        ),
      ),
    ),
  ];
}
