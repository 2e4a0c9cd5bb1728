/** Metrics of a run by step, paged from `GET /history` and kept up to date. */

import { getJson } from './api.mjs';

/** Steps of a page. */
const PAGE = 1000;
/** Last steps that are asked for again: an evaluation may add to a step that was already updated. */
const REPEATED = 10;

export class History {
  /** @type {number[]} */
  steps = [];
  /** @type {string} */
  run = '';
  error = '';
  loaded = false;
  /** @type {Map<number, Record<string, number>>} */
  #metrics = new Map();
  /** @type {Map<string, import('./series.mjs').Values>} */
  #columns = new Map();
  /** @type {Promise<void> | null} */
  #loading = null;
  #again = false;

  /** @param {string} [run] Name of the experiment; the current one if empty. */
  constructor(run = '') {
    this.wanted = run;
  }

  /**
   * Loads what is new. Calls during a load lead to one more.
   * @returns {Promise<void>}
   */
  refresh() {
    if (this.#loading) {
      this.#again = true;
      return this.#loading;
    }
    this.#loading = this.#load().finally(() => {
      this.#loading = null;
      if (this.#again) {
        this.#again = false;
        this.refresh();
      }
    });
    return this.#loading;
  }

  /**
   * Values of a metric, one for each step; undefined if no step has it.
   * @param {string} key
   */
  column(key) {
    if (!this.keys().includes(key)) return undefined;
    let column = this.#columns.get(key);
    if (!column) {
      column = this.steps.map((step) => this.#metrics.get(step)?.[key] ?? null);
      this.#columns.set(key, column);
    }
    return column;
  }

  /** Step of the last update; null before the first one. */
  lastUpdate() {
    const rewards = this.column('reward_mean') ?? [];
    return this.steps[rewards.findLastIndex((value) => value != null)] ?? null;
  }

  /** Names of all metrics. */
  keys() {
    this.#keys ??= [...new Set([...this.#metrics.values()].flatMap(Object.keys))];
    return this.#keys;
  }

  /** @type {string[] | null} */
  #keys = null;

  async #load() {
    /** @type {number | null} */
    let since = this.steps.at(-REPEATED) ?? 0;
    try {
      while (since != null) {
        /** @type {import('./protocol.mjs').History} */
        const page = await getJson('/history', { query: { run: this.wanted, since, limit: PAGE } });
        this.#take(page);
        since = page.next ?? null;
      }
      this.error = '';
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
    }
    this.loaded = true;
  }

  /** @param {import('./protocol.mjs').History} page */
  #take(page) {
    if (page.run !== this.run) this.#metrics.clear();
    this.run = page.run;
    for (const { global_step, metrics } of page.steps) this.#metrics.set(global_step, metrics);
    this.steps = [...this.#metrics.keys()].sort((a, b) => a - b);
    this.#columns.clear();
    this.#keys = null;
  }
}
