/** What views have in common. */

import { h } from '../dom.mjs';

/**
 * @typedef {object} App
 * @property {import('../store.mjs').Store} store
 * @property {import('../history.mjs').History} history Metrics of the current run.
 */
/**
 * @typedef {object} View
 * @property {HTMLElement} element
 * @property {() => void} [update] Called after changes, at most once a frame.
 * @property {() => void} [destroy]
 * @property {(by: 1 | -1) => boolean} [step] Goes to the next or previous page or episode; false if there is none.
 */

/** @typedef {(app: App, place: import('../router.mjs').Address) => View} OpenView */

/**
 * A titled part of a view.
 * @param {string} title
 * @param {...import('../dom.mjs').Child} children
 */
export function panel(title, ...children) {
  return h('section', { class: 'panel' }, h('h2', {}, title), children);
}

/**
 * A key figure: a label, a value, and a remark.
 * @param {string} label
 * @param {string} [hint]
 */
export function figure(label, hint) {
  const value = h('dd', { class: 'value' }, '–');
  const remark = h('dd', { class: 'remark' });
  return { element: h('div', { class: 'figure', title: hint }, h('dt', {}, label), value, remark), value, remark };
}

/**
 * A field that filters; `/` moves to it.
 * @param {string} label
 * @param {string} value
 * @param {(text: string) => void} onChange Called with a short delay while typing.
 */
export function searchField(label, value, onChange) {
  let timer = 0;
  const input = h('input', {
    type: 'search',
    class: 'search',
    placeholder: label,
    'aria-label': label,
    value,
    autocomplete: 'off',
    spellcheck: 'false',
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(() => onChange(input.value.trim()), 150);
    },
  });
  return input;
}

/**
 * A choice among a few.
 * @param {string} label
 * @param {[string, string][]} choices Value and text.
 * @param {string} value
 * @param {(value: string) => void} onChange
 */
export function segmented(label, choices, value, onChange) {
  const buttons = choices.map(([choice, text]) =>
    h(
      'button',
      {
        type: 'button',
        'aria-pressed': String(choice === value),
        'data-choice': choice,
        onclick: () => {
          select(choice);
          onChange(choice);
        },
      },
      text,
    ),
  );
  /** @param {string} chosen */
  function select(chosen) {
    for (const button of buttons) button.setAttribute('aria-pressed', String(button.dataset.choice === chosen));
  }
  return { element: h('div', { class: 'segmented', role: 'group', 'aria-label': label }, buttons), select };
}

/** How to begin. */
export function startHint() {
  return `Start one: ajet-swarm roll job.yaml --swarm-url ${location.origin}`;
}

/** @param {unknown} error */
export function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}
