/** Engine: load and speed of sampling, and where the time of a step goes. */

import { Chart, legend } from '../charts.mjs';
import { fill, h, setText, show } from '../dom.mjs';
import { bytes, compact, duration, number, percent, time } from '../format.mjs';
import { last } from '../series.mjs';
import { oneLine } from '../text.mjs';
import { figure, panel, startHint } from './view.mjs';

/** @typedef {import('../protocol.mjs').Distribution} Distribution */
/** @typedef {{ at: number[], values: Record<string, import('../series.mjs').Values> }} Recent */

/** Measurements kept of each figure: ten minutes at four a second. */
const KEPT = 2400;
/** Least time between two measurements, in seconds. */
const SPACING = 0.25;

/** What is plotted over time. */
const PLOTS = /** @type {const} */ ([
  { key: 'tokens_per_second', title: 'Sampled tokens per second' },
  { key: 'running_requests', title: 'LLM requests being sampled' },
  { key: 'waiting_requests', title: 'LLM requests queued' },
  { key: 'cache_usage', title: 'Share of the KV cache in use' },
]);

/** @type {Recent} Lives as long as the page, so that the curves go on when the view is opened again. */
const recent = { at: [], values: {} };

/**
 * Keeps the load for the curves. Called with every status, whichever view is shown.
 * @param {import('../protocol.mjs').Status} status
 */
export function recordLoad({ server, sampling }) {
  if (!sampling || server.now - (recent.at.at(-1) ?? 0) < SPACING) return;
  recent.at.push(server.now);
  for (const { key } of PLOTS) (recent.values[key] ??= []).push(sampling[key]);
  if (recent.at.length <= KEPT) return;
  recent.at.shift();
  for (const { key } of PLOTS) recent.values[key].shift();
}

/**
 * @param {import('./view.mjs').App} app
 * @returns {import('./view.mjs').View}
 */
export function engine(app) {
  const figures = engineFigures();
  const empty = h('p', { class: 'empty' });
  const charts = PLOTS.map(
    ({ title }) => new Chart({ height: 150, title, sync: 'engine', range: [0, null], xText: (at) => time(at) }),
  );
  const curves = h(
    'div',
    { class: 'grid' },
    PLOTS.map(({ title }, index) => h('article', { class: 'metric' }, h('h3', {}, title), charts[index].element)),
  );
  const spent = timeOfStep(app);
  const about = h('dl', { class: 'facts' });
  const element = h(
    'div',
    { class: 'view engine' },
    empty,
    figures.element,
    curves,
    panel('Time of a step', spent.element),
    panel('What runs', about),
  );
  return {
    element,
    update() {
      const { status } = app.store;
      if (!status) return;
      show(empty, status.sampling == null);
      setText(
        empty,
        `No engine runs.${recent.at.length > 0 ? ' The curves end where it stopped.' : ` ${startHint()}`}`,
      );
      show(curves, recent.at.length > 0);
      show(figures.element, status.sampling != null);
      figures.update(status.sampling);
      charts.forEach((chart, index) => {
        const { key, title } = PLOTS[index];
        if (recent.at.length > 0) chart.set(recent.at, [{ label: title, values: recent.values[key] }]);
      });
      spent.update();
      fill(
        about,
        aboutFacts(status).map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))),
      );
    },
    destroy() {
      for (const chart of charts) chart.destroy();
      spent.destroy();
    },
  };
}

function engineFigures() {
  const requests = figure('LLM requests', 'Sampled at the same time, mean of the last 10 seconds');
  const speed = figure('Sampled', 'Mean of the last 10 seconds');
  const prompts = figure('Prompts computed', 'Mean of the last 10 seconds');
  const cache = figure('KV cache');
  const first = figure('Time to first token', 'Of the last requests');
  const each = figure('Time per token', 'Of the last requests');
  const memory = figure('Memory', 'Resident memory of the engine');
  const all = [requests, speed, prompts, cache, first, each, memory];
  /** @param {import('../protocol.mjs').SamplingLoad | null} load */
  function update(load) {
    setText(requests.value, number(load?.running_requests));
    setText(requests.remark, load ? `${number(load.waiting_requests)} waiting` : '');
    setText(speed.value, load ? `${compact(Math.round(load.tokens_per_second))} tok/s` : '–');
    setText(speed.remark, load ? `${number(Math.round(10 * load.episodes_per_second) / 10)} episodes/s` : '');
    setText(prompts.value, load ? `${compact(Math.round(load.prompt_tokens_per_second))} tok/s` : '–');
    setText(prompts.remark, load ? `${percent(load.prefix_hit_rate)} from the prefix cache` : '');
    setText(cache.value, percent(load?.cache_usage));
    latency(first, load?.time_to_first_token);
    latency(each, load?.time_per_token);
    setText(memory.value, bytes(load?.memory_bytes));
  }
  return {
    element: h(
      'dl',
      { class: 'figures' },
      all.map((one) => one.element),
    ),
    update,
  };
}

/** @param {ReturnType<typeof figure>} shown @param {Distribution | null | undefined} spread */
function latency(shown, spread) {
  setText(shown.value, duration(spread?.p50));
  setText(shown.remark, spread ? `${duration(spread.p10)} to ${duration(spread.p90)}` : 'no request yet');
}

/** Phases of a step, whose metrics are `seconds/NAME`. */
const PARTS = [
  { name: 'rolling', label: 'rolling', color: '--phase-rolling' },
  { name: 'post', label: 'finishing', color: '--phase-post' },
  { name: 'update', label: 'update', color: '--phase-updating' },
  { name: 'export', label: 'checkpoint', color: '--muted' },
];

/** @param {import('./view.mjs').App} app */
function timeOfStep({ history }) {
  const chart = new Chart({ height: 180, title: 'Seconds by step', range: [0, null] });
  const key = h('div');
  const empty = h('p', { class: 'empty' }, 'Known after the first update.');
  let drawn = '';
  return {
    element: h('div', {}, empty, chart.element, key),
    update() {
      const parts = PARTS.filter(({ name }) => history.column(`seconds/${name}`));
      show(empty, parts.length === 0);
      show(chart.element, parts.length > 0);
      const state = `${history.run} ${history.steps.length} ${parts.length} ${last(history.steps)}`;
      if (parts.length === 0 || state === drawn) return;
      drawn = state;
      chart.set(
        history.steps,
        parts.map(({ name, label, color }) => ({
          label: `${label}, s`,
          values: history.column(`seconds/${name}`) ?? [],
          color,
        })),
      );
      fill(key, legend(parts));
    },
    destroy: () => chart.destroy(),
  };
}

/** @param {import('../protocol.mjs').Status} status @returns {[string, string][]} */
function aboutFacts({ experiment, engine: state, server }) {
  const size = experiment?.parameters
    ? `${compact(experiment.parameters)} parameters, ${compact(experiment.trainable_parameters)} trained`
    : '–';
  return [
    ['Experiment', oneLine([experiment?.project, experiment?.name].filter(Boolean).join(' / ') || '–', 120)],
    ['Model', oneLine(experiment?.model ?? '–', 200)],
    ['Size', size],
    ['Device', oneLine(experiment?.device || '–', 40)],
    ['Directory', oneLine(experiment?.directory ?? '–', 300)],
    ['Restarts after a crash', number(state.restarts)],
    ['Server', `ajet-swarm ${oneLine(server.version, 40)}, up ${duration(Math.round(server.now - server.started))}`],
  ];
}
