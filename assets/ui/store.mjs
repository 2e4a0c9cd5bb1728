/** What the page knows of the server: the latest status and the state of the connection. */

import { follow } from './sse.mjs';

/** @typedef {import('./protocol.mjs').Status} Status */
/** @typedef {'connecting' | 'live' | 'lost' | 'refused'} ConnectionState */
/** @typedef {{ state: ConnectionState, message: string, since: number, retryAt: number }} Connection */

export class Store {
  /** @type {Status | null} */
  status = null;
  /** @type {Connection} */
  connection = { state: 'connecting', message: '', since: Date.now(), retryAt: 0 };
  /** The server's clock minus ours, in seconds. */
  #offset = 0;
  /** @type {Set<() => void>} */
  #listeners = new Set();
  #scheduled = false;
  #stop = new AbortController();

  /** Connects, and stays connected. */
  start() {
    this.#stop.abort();
    this.#stop = new AbortController();
    this.#connection('connecting', '');
    follow('/status/stream', {
      signal: this.#stop.signal,
      onData: (status) => this.#take(status),
      onLost: (error, retryAt) => this.#connection('lost', error.message, retryAt),
      onRefused: (error) => this.#connection('refused', error.message),
    });
  }

  /** Time by the server's clock, in Unix seconds. */
  now() {
    return Date.now() / 1000 + this.#offset;
  }

  /**
   * Calls `listener` after changes, at most once a frame.
   * @param {() => void} listener
   * @returns {() => void} Ends it.
   */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Calls the listeners with the next frame. */
  changed() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      for (const listener of this.#listeners) listener();
    });
  }

  /** @param {Status} status */
  #take(status) {
    this.status = status;
    this.#offset = status.server.now - Date.now() / 1000;
    if (this.connection.state !== 'live') this.#connection('live', '');
    this.changed();
  }

  /** @param {Connection['state']} state @param {string} message @param {number} [retryAt] */
  #connection(state, message, retryAt = 0) {
    const since = this.connection.state === state ? this.connection.since : Date.now();
    this.connection = { state, message, since, retryAt };
    this.changed();
  }
}
