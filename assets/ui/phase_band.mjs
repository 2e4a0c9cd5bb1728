/** The engine's states over time, as a band. */

import { h, fill, setText, show } from './dom.mjs';
import { duration, percent, time } from './format.mjs';
import { shares, stateOf } from './states.mjs';
import { color } from './theme.mjs';

/** Shown time at least, in seconds. */
const MIN_WINDOW = 60;
/** Shown time at most, in seconds. */
const MAX_WINDOW = 3600;

export class PhaseBand {
  /** @type {import('./protocol.mjs').Phase[]} */
  #phases = [];
  #from = 0;
  #to = 1;

  constructor() {
    this.canvas = h('canvas', {
      class: 'band-canvas',
      role: 'img',
      onpointermove: (/** @type {PointerEvent} */ e) => this.#tip(e),
      onpointerleave: () => show(this.tip, false),
    });
    this.tip = h('div', { class: 'chart-tip', hidden: true });
    this.scale = h('div', { class: 'band-scale' }, h('span'), h('span'));
    this.summary = h('ul', { class: 'legend' });
    this.element = h('div', { class: 'band' }, this.canvas, this.tip, this.scale, this.summary);
  }

  /**
   * @param {import('./protocol.mjs').Phase[]} phases Oldest first.
   * @param {number} now Unix seconds.
   */
  set(phases, now) {
    this.#phases = phases;
    this.#to = now;
    this.#from = Math.max(now - MAX_WINDOW, Math.min(phases[0]?.since ?? now, now - MIN_WINDOW));
    this.#draw();
    const spent = shares(phases, this.#from, now);
    setText(/** @type {Element} */ (this.scale.firstElementChild), `${duration(Math.round(now - this.#from))} ago`);
    setText(/** @type {Element} */ (this.scale.lastElementChild), 'now');
    const words = spent.map(({ status, share }) => `${stateOf(status).word} ${percent(share)}`);
    this.canvas.setAttribute('aria-label', `Share of time by state: ${words.join(', ')}`);
    fill(
      this.summary,
      spent.map(({ status }, index) => {
        const key = h('span', { class: 'key key-band', 'aria-hidden': 'true' });
        key.style.setProperty('--key', `var(${stateOf(status).color})`);
        return h('li', {}, key, words[index]);
      }),
    );
  }

  #draw() {
    const ratio = devicePixelRatio || 1;
    const width = Math.round(this.canvas.clientWidth * ratio);
    const height = Math.round(this.canvas.clientHeight * ratio);
    if (width === 0) return;
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    const ctx = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext('2d'));
    ctx.clearRect(0, 0, width, height);
    this.#phases.forEach(({ status, since }, index) => {
      const [start, end] = [this.#place(since, width), this.#place(this.#phases[index + 1]?.since ?? this.#to, width)];
      ctx.fillStyle = color(stateOf(status).color);
      // Even a short update leaves a mark.
      if (end > 0) ctx.fillRect(Math.max(0, start), 0, Math.max(ratio, end - Math.max(0, start)), height);
    });
  }

  /** @param {number} at Unix seconds. @param {number} width */
  #place(at, width) {
    return ((at - this.#from) / (this.#to - this.#from)) * width;
  }

  /** @param {PointerEvent} event */
  #tip(event) {
    const at = this.#from + (event.offsetX / this.canvas.clientWidth) * (this.#to - this.#from);
    const index = this.#phases.findLastIndex((phase) => phase.since <= at);
    const phase = this.#phases[index];
    show(this.tip, phase != null);
    if (!phase) return;
    const end = this.#phases[index + 1]?.since ?? this.#to;
    setText(
      this.tip,
      `${stateOf(phase.status).word}, step ${phase.global_step}\n${time(phase.since)}, ${duration(end - phase.since)}`,
    );
    const right = event.offsetX > this.canvas.clientWidth / 2;
    this.tip.classList.toggle('left', right);
    this.tip.style.left = `${event.offsetX + (right ? -10 : 10)}px`;
  }
}
