/** A training row, token by token, coloured by mask, log-probability or advantage. */

import { h, fill, setText, show } from './dom.mjs';
import { fixed, number, percent, plural } from './format.mjs';
import { tokenText } from './text.mjs';
import { LEAST_LOGPROB, LEVELS, advantageScale, tokenClass } from './token_scale.mjs';

/** @typedef {import('./protocol.mjs').TokenRow} TokenRow */
/** @typedef {import('./token_scale.mjs').Mode} Mode */

/** Tokens that are drawn at once. */
const CHUNK = 3000;

export class TokenView {
  /** @type {Mode} */
  #mode = 'mask';
  #selected = -1;

  /** @param {TokenRow} row */
  constructor(row) {
    this.row = row;
    this.scale = advantageScale(row);
    this.tip = h('div', { class: 'chart-tip token-tip', role: 'status', hidden: true });
    this.tokens = h('div', {
      class: 'tokens',
      tabindex: 0,
      role: 'group',
      'aria-label': 'Tokens; the arrow keys select one',
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.#keydown(event),
      onpointerover: (/** @type {PointerEvent} */ event) => this.#point(/** @type {HTMLElement} */ (event.target)),
      onpointerdown: (/** @type {PointerEvent} */ event) => this.#point(/** @type {HTMLElement} */ (event.target)),
      onpointerleave: () => this.#point(this.tokens),
    });
    this.more = h('button', { type: 'button', onclick: () => this.#addChunk() });
    this.element = h('div', { class: 'token-view' }, this.tokens, this.more, this.tip);
    this.#addChunk();
  }

  /** @param {Mode} mode */
  setMode(mode) {
    this.#mode = mode;
    [...this.tokens.children].forEach((token, index) => {
      token.className = this.#class(index);
    });
  }

  #addChunk() {
    const from = this.tokens.childElementCount;
    const texts = this.row.texts.slice(from, from + CHUNK);
    this.tokens.append(
      ...texts.map((text, offset) => h('span', { class: this.#class(from + offset) }, tokenText(text))),
    );
    const left = this.row.texts.length - this.tokens.childElementCount;
    setText(this.more, `Show ${number(Math.min(left, CHUNK))} of ${plural(left, 'more token')}`);
    show(this.more, left > 0);
  }

  /** @param {number} index */
  #class(index) {
    const selected = index === this.#selected ? ' selected' : '';
    return `token ${tokenClass(this.#mode, this.row, index, this.scale)}${selected}`;
  }

  /** @param {HTMLElement} target */
  #point(target) {
    const token = target.closest('.token');
    this.#select(token ? [...this.tokens.children].indexOf(token) : -1);
  }

  /** @param {KeyboardEvent} event */
  #keydown(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, l: 1, h: -1 };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    this.#select(Math.max(0, Math.min(this.#selected + step, this.tokens.childElementCount - 1)));
    this.tokens.children[this.#selected]?.scrollIntoView({ block: 'nearest' });
  }

  /** @param {number} index */
  #select(index) {
    const before = this.#selected;
    this.#selected = index;
    for (const changed of [before, index]) {
      const token = this.tokens.children[changed];
      if (token) token.className = this.#class(changed);
    }
    const token = /** @type {HTMLElement | undefined} */ (this.tokens.children[index]);
    show(this.tip, token != null);
    if (token) this.#describe(token, index);
  }

  /** @param {HTMLElement} token @param {number} index */
  #describe(token, index) {
    const { ids, mask, logprobs, advantages } = this.row;
    const facts = [
      ['token', JSON.stringify(tokenText(this.row.texts[index]))],
      ['id', String(ids[index])],
      ['position', String(index)],
      ['sampled', mask[index] ? 'yes, trained on' : 'no'],
      ...(mask[index]
        ? [['log-probability', `${fixed(logprobs[index])} (${percent(Math.exp(logprobs[index]))})`]]
        : []),
      ...(mask[index] && advantages ? [['advantage', fixed(advantages[index])]] : []),
    ];
    fill(
      this.tip,
      facts.map(([name, value]) => h('div', {}, h('span', { class: 'muted' }, name), ' ', h('b', {}, value))),
    );
    const left = Math.min(token.offsetLeft, this.element.clientWidth - this.tip.offsetWidth - 4);
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${token.offsetTop + token.offsetHeight + 4}px`;
  }
}

/**
 * What the colours of a mode mean.
 * @param {Mode} mode
 * @param {number} scale Largest absolute advantage.
 */
export function tokenLegend(mode, scale) {
  /** @param {string} kind @param {string} text */
  const entry = (kind, text) => h('li', {}, h('span', { class: `token ${kind}` }, 'token'), text);
  const ramp = (/** @type {string} */ kind) =>
    h(
      'span',
      { class: 'ramp', 'aria-hidden': 'true' },
      Array.from({ length: LEVELS + 1 }, (_, level) => h('span', { class: `token ${kind}-${level}` }, ' ')),
    );
  const given = entry('given', 'given to the model');
  if (mode === 'mask') return h('ul', { class: 'legend' }, entry('sampled', 'sampled and trained on'), given);
  if (mode === 'logprob') {
    return h(
      'ul',
      { class: 'legend' },
      h('li', {}, 'certain', ramp('surprise'), `log-probability ${number(LEAST_LOGPROB)} or less`),
      given,
    );
  }
  return h(
    'ul',
    { class: 'legend' },
    h('li', {}, 'discouraged, to ', fixed(-scale, 2), ramp('loss')),
    h('li', {}, 'encouraged, to ', fixed(scale, 2), ramp('gain')),
    given,
  );
}
