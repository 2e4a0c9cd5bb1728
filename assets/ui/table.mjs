/** Tables whose rows are kept up to date in place, with sorting by their heads and selection by keys. */

import { h, reconcile, setText, show } from './dom.mjs';

/**
 * @template T
 * @typedef {object} Column
 * @property {string} id
 * @property {string} label
 * @property {(row: T) => string} text What the cell says; the cell is drawn again when it changes.
 * @property {(cell: HTMLElement, row: T) => void} [paint] Draws the cell instead of its text.
 * @property {boolean} [numeric]
 * @property {boolean} [name] A name, which is cut where there is no room.
 * @property {boolean} [sortable]
 * @property {'wide' | 'medium'} [from] Width of the window from which it is shown.
 * @property {string} [hint]
 */

/** @template T */
export class Table {
  /** @type {T[]} */
  #rows = [];
  /** @type {string | null} */
  #selected = null;

  /**
   * @param {{
   *   label: string,
   *   columns: Column<T>[],
   *   key: (row: T) => string,
   *   onOpen?: (row: T) => void,
   *   onSort?: (id: string, descending: boolean) => void,
   *   mark?: (row: T) => string,
   * }} options
   */
  constructor({ label, columns, key, onOpen, onSort, mark }) {
    this.columns = columns;
    this.key = key;
    this.onOpen = onOpen;
    this.onSort = onSort;
    this.mark = mark;
    this.sort = { id: '', descending: true };
    this.head = h(
      'tr',
      {},
      columns.map((column) => this.#headCell(column)),
    );
    this.body = h('tbody', { onclick: (/** @type {MouseEvent} */ event) => this.#click(event) });
    this.empty = h('p', { class: 'empty', hidden: true });
    this.scroll = h(
      'div',
      {
        class: 'scroll',
        tabindex: 0,
        role: 'region',
        'aria-label': label,
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.#keydown(event),
      },
      h('table', {}, h('thead', {}, this.head), this.body),
    );
    this.element = h('div', { class: 'table' }, this.scroll, this.empty);
  }

  /**
   * @param {T[]} rows
   * @param {string} empty What to say and do if there are none.
   */
  set(rows, empty = '') {
    this.#rows = rows;
    reconcile(
      this.body,
      rows,
      this.key,
      () =>
        h(
          'tr',
          {},
          this.columns.map((column) => h('td', { class: classOf(column) })),
        ),
      (element, row) => this.#update(element, row),
    );
    setText(this.empty, empty);
    show(this.empty, rows.length === 0 && empty !== '');
    show(this.scroll, rows.length > 0);
  }

  /** @param {string} id @param {boolean} descending */
  setSort(id, descending) {
    this.sort = { id, descending };
    this.columns.forEach((column, index) => {
      const sorted = column.id === id ? (descending ? 'descending' : 'ascending') : 'none';
      if (column.sortable) this.head.children[index]?.setAttribute('aria-sort', sorted);
    });
  }

  /** Gives the list the keys, so that arrows move in it. */
  focus() {
    this.scroll.focus({ preventScroll: true });
  }

  /** @param {Column<T>} column */
  #headCell(column) {
    const hint = column.hint ?? null;
    if (!column.sortable) return h('th', { class: classOf(column), scope: 'col', title: hint }, column.label);
    const sort = () => {
      const descending = this.sort.id === column.id ? !this.sort.descending : true;
      this.setSort(column.id, descending);
      this.onSort?.(column.id, descending);
    };
    return h(
      'th',
      { class: classOf(column), scope: 'col', title: hint, 'aria-sort': 'none' },
      h('button', { type: 'button', class: 'sort', onclick: sort }, column.label),
    );
  }

  /** @param {HTMLElement} element @param {T} row */
  #update(element, row) {
    const mark = this.mark?.(row) ?? '';
    const selected = this.key(row) === this.#selected ? ' selected' : '';
    const open = this.onOpen ? 'opens' : '';
    const name = `${open} ${mark}${selected}`;
    if (element.className !== name) element.className = name;
    this.columns.forEach((column, index) => {
      const cell = /** @type {HTMLElement} */ (element.children[index]);
      const text = column.text(row);
      if (cell.dataset.text === text) return;
      cell.dataset.text = text;
      if (column.paint) column.paint(cell, row);
      else cell.textContent = text;
    });
  }

  /** @param {MouseEvent} event */
  #click(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.closest('a, button, input') || String(getSelection()) !== '') return;
    const key = /** @type {HTMLElement | null} */ (target.closest('tr'))?.dataset.key;
    const row = this.#rows.find((row) => this.key(row) === key);
    if (row) this.onOpen?.(row);
  }

  /** @param {KeyboardEvent} event */
  #keydown(event) {
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 10, PageUp: -10 };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (step) this.#select(this.#index() + step);
    else if (event.key === 'Home') this.#select(0);
    else if (event.key === 'End') this.#select(this.#rows.length - 1);
    else if (event.key === 'Enter' && event.target === event.currentTarget && this.#rows[this.#index()]) {
      this.onOpen?.(this.#rows[this.#index()]);
    } else return;
    event.preventDefault();
  }

  #index() {
    return this.#rows.findIndex((row) => this.key(row) === this.#selected);
  }

  /** @param {number} index */
  #select(index) {
    const row = this.#rows[Math.max(0, Math.min(index, this.#rows.length - 1))];
    if (!row) return;
    this.#selected = this.key(row);
    for (const element of this.body.children) {
      const is = /** @type {HTMLElement} */ (element).dataset.key === this.#selected;
      element.classList.toggle('selected', is);
      if (is) element.scrollIntoView({ block: 'nearest' });
    }
  }
}

/** @param {Column<any>} column */
function classOf(column) {
  return [column.numeric ? 'number' : '', column.name ? 'name' : '', column.from ? `from-${column.from}` : '']
    .join(' ')
    .trim();
}
