/** Line charts on canvas, by uPlot, in the page's colours. */

import uPlot from './vendor/uplot/uPlot.mjs';
import { fixed, number } from './format.mjs';
import { h, setText, show } from './dom.mjs';
import { color } from './theme.mjs';

/** @typedef {import('./series.mjs').Values} Values */
/**
 * @typedef {object} Line
 * @property {string} label
 * @property {Values} values
 * @property {string} [color] Colour variable, such as `--accent`.
 * @property {'line' | 'points' | 'thin'} [kind]
 * @property {{ low: Values, high: Values, label: string }} [band] Filled area around the line.
 */
/**
 * @typedef {object} ChartOptions
 * @property {number} height Pixels.
 * @property {string} title For screen readers.
 * @property {string} [sync] Charts with the same key share the cursor.
 * @property {boolean} [log] Logarithmic values.
 * @property {(x: number) => string} [xText] Text of a place on the x axis.
 * @property {[number | null, number | null]} [range] Values that the y axis includes.
 */

const FONT = '11px system-ui, sans-serif';

/** A chart that keeps the width of its container. */
export class Chart {
  /** @type {any} */
  #plot = null;
  /** @type {ResizeObserver} */
  #observer;
  #width = 0;
  /** @type {Line[]} */
  #lines = [];
  /** @type {number[]} */
  #x = [];
  #shape = '';
  #redraw = () => this.#plot?.redraw(false);

  /** @param {ChartOptions} options */
  constructor(options) {
    this.options = options;
    this.tooltip = h('div', { class: 'chart-tip', hidden: true });
    this.element = h('div', { class: 'chart', role: 'img', 'aria-label': options.title }, this.tooltip);
    this.element.style.height = `${options.height}px`;
    this.#observer = new ResizeObserver(() => this.#resize());
    this.#observer.observe(this.element);
    document.addEventListener('themechange', this.#redraw);
  }

  /**
   * Shows these lines over `x`.
   * @param {number[]} x Ascending.
   * @param {Line[]} lines
   */
  set(x, lines) {
    [this.#x, this.#lines] = [x, lines];
    const shape = JSON.stringify([
      this.options.log,
      lines.map((line) => [line.label, line.color, line.kind, line.band?.label]),
    ]);
    if (this.#plot && shape === this.#shape) this.#plot.setData(this.#data());
    else this.#create();
    this.#shape = shape;
    const latest = lines.map((line) => `${line.label} ${number(line.values.findLast((value) => value != null))}`);
    this.element.setAttribute('aria-label', `${this.options.title}. Latest: ${latest.join(', ')}`);
  }

  /** @param {boolean} log */
  setLog(log) {
    this.options = { ...this.options, log };
  }

  /** @param {number} height */
  setHeight(height) {
    this.options = { ...this.options, height };
    this.element.style.height = `${height}px`;
    this.#plot?.setSize({ width: this.#width, height });
  }

  destroy() {
    this.#observer.disconnect();
    document.removeEventListener('themechange', this.#redraw);
    this.#plot?.destroy();
    this.#plot = null;
  }

  #resize() {
    const width = this.element.clientWidth;
    if (width === this.#width || width === 0) return;
    this.#width = width;
    if (this.#plot) this.#plot.setSize({ width, height: this.options.height });
    else if (this.#lines.length > 0) this.#create();
  }

  #create() {
    if (this.#width === 0) return; // not in the document yet
    this.#plot?.destroy();
    this.#plot = new /** @type {any} */ (uPlot)(this.#uplotOptions(), this.#data(), this.element);
  }

  /** Series in uPlot's order: of each line its values, and the edges of its band. */
  #data() {
    return [
      this.#x,
      ...this.#lines.flatMap((line) => [line.values, ...(line.band ? [line.band.low, line.band.high] : [])]),
    ];
  }

  #uplotOptions() {
    const { height, log, sync, xText } = this.options;
    const axis = {
      stroke: () => color('--muted'),
      font: FONT,
      ticks: { show: false },
      grid: { stroke: () => color('--grid'), width: 1 },
    };
    return {
      width: this.#width,
      height,
      padding: [8, xText ? 30 : 18, 0, 0],
      legend: { show: false },
      scales: { x: { time: false }, y: { distr: log ? 3 : 1, range: log ? undefined : this.#range } },
      axes: [
        {
          ...axis,
          size: 24,
          gap: 4,
          values: (/** @type {any} */ _, /** @type {number[]} */ at) => at.map(xText ?? whole),
        },
        {
          ...axis,
          size: 52,
          gap: 6,
          space: 24,
          values: (/** @type {any} */ _, /** @type {(number | null)[]} */ at) => at.map(tick),
        },
      ],
      series: [{}, ...this.#lines.flatMap(seriesOf)],
      bands: bandsOf(this.#lines),
      cursor: { y: false, drag: { x: true, y: false }, points: { size: 6 }, ...(sync ? { sync: { key: sync } } : {}) },
      hooks: { setCursor: [(/** @type {any} */ plot) => this.#showTip(plot)], drawAxes: [drawZero] },
    };
  }

  #range = (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => {
    const [least, most] = this.options.range ?? [null, null];
    if (low == null || high == null) return [least ?? 0, most ?? 1];
    const [from, to] = [Math.min(low, least ?? low), Math.max(high, most ?? high)];
    const margin = (to - from || Math.abs(to) || 1) * 0.06;
    return [from === least ? from : from - margin, to === most ? to : to + margin];
  };

  /** @param {any} plot */
  #showTip(plot) {
    const { idx, left } = plot.cursor;
    const here = idx != null && left >= 0;
    show(this.tooltip, here);
    if (!here) return;
    const x = (this.options.xText ?? ((step) => `step ${whole(step)}`))(this.#x[idx]);
    const lines = this.#lines.flatMap((line) => tipOf(line, idx));
    if (lines.length === 0) return show(this.tooltip, false);
    setText(this.tooltip, [x, ...lines].join('\n'));
    const right = left > plot.over.clientWidth / 2;
    this.tooltip.classList.toggle('left', right);
    this.tooltip.style.left = `${plot.over.offsetLeft + left + (right ? -10 : 10)}px`;
  }
}

/** @param {Line} line @param {number} index */
function tipOf(line, index) {
  const value = line.values[index];
  if (value == null) return [];
  const { low, high } = line.band ?? {};
  const spread =
    low?.[index] != null && high?.[index] != null ? ` (${fixed(low[index])} to ${fixed(high[index])})` : '';
  return [`${line.label} ${number(value)}${spread}`];
}

/** @param {Line} line */
function seriesOf(line) {
  const stroke = () => color(line.color ?? '--accent');
  const own = {
    label: line.label,
    stroke,
    spanGaps: line.kind !== 'points',
    width: line.kind === 'points' ? 0 : line.kind === 'thin' ? 1 : 1.75,
    points:
      line.kind === 'points'
        ? { show: true, size: 7, width: 2, stroke, fill: () => color('--surface') }
        : { show: few },
  };
  const edge = { stroke: 'transparent', width: 0, spanGaps: true, points: { show: false } };
  return line.band ? [own, edge, edge] : [own];
}

/** Points of a line that is too short to be seen as one. @param {any} plot */
function few(plot) {
  return plot.data[0].length < 3;
}

/** @param {Line[]} lines */
function bandsOf(lines) {
  let index = 1;
  const bands = [];
  for (const line of lines) {
    if (line.band) bands.push({ series: [index + 2, index + 1], fill: () => color('--accent-band') });
    index += line.band ? 3 : 1;
  }
  return bands;
}

/** A stronger line at zero, where values of both signs are shown. @param {any} plot */
function drawZero(plot) {
  const { min, max, distr } = plot.scales.y;
  if (distr === 3 || !(min < 0 && max > 0)) return;
  const y = Math.round(plot.valToPos(0, 'y', true)) + 0.5;
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = color('--muted');
  ctx.setLineDash([3, 3]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}

/** @param {number} value */
function whole(value) {
  return Number.isInteger(value) ? String(value) : '';
}

/** @param {number | null} value */
function tick(value) {
  if (value == null) return '';
  const size = Math.abs(value);
  return size >= 10_000 ? value.toLocaleString('en-US', { notation: 'compact' }) : number(value);
}

/**
 * The parts of a chart in words, with their colours.
 * @param {{ label: string, color: string, kind?: 'line' | 'points' | 'band' }[]} parts
 */
export function legend(parts) {
  return h(
    'ul',
    { class: 'legend' },
    parts.map(({ label, color: name, kind = 'line' }) => {
      const key = h('span', { class: `key key-${kind}`, 'aria-hidden': 'true' });
      key.style.setProperty('--key', `var(${name})`);
      return h('li', {}, key, label);
    }),
  );
}
