/** Server-sent events, read with `fetch`: `EventSource` cannot send the token's header. */

import { ApiError, request } from './api.mjs';

/** Longest silence of a stream, in milliseconds. The server sends comments more often than this. */
const SILENCE = 45_000;
/** Pauses between attempts, in milliseconds. */
const PAUSES = [500, 1000, 2000, 4000, 8000];

/** Splits a stream into the data of its events. Pure. */
export class SseParser {
  #rest = '';
  /** @type {string[]} */
  #data = [];

  /**
   * @param {string} chunk
   * @returns {string[]} The data of the events that the chunk completes.
   */
  push(chunk) {
    const lines = (this.#rest + chunk).split('\n');
    this.#rest = lines.pop() ?? '';
    const events = [];
    for (const raw of lines) {
      const line = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
      if (line.startsWith('data:')) this.#data.push(line.slice(line[5] === ' ' ? 6 : 5));
      else if (line === '' && this.#data.length > 0) events.push(this.#data.splice(0).join('\n'));
    }
    return events;
  }
}

/**
 * Follows an event stream and connects again whenever it ends, until `signal` aborts or the server wants a token.
 * @param {string} path
 * @param {{
 *   signal: AbortSignal,
 *   onData: (data: any) => void,
 *   onLost: (error: ApiError, retryAt: number) => void,
 *   onRefused: (error: ApiError) => void,
 * }} handlers
 */
export async function follow(path, { signal, onData, onLost, onRefused }) {
  let failures = 0;
  while (!signal.aborted) {
    let error = new ApiError(0, 'the server closed the stream');
    try {
      await readOnce(path, signal, (data) => {
        failures = 0;
        onData(data);
      });
    } catch (thrown) {
      if (signal.aborted) return;
      error = thrown instanceof ApiError ? thrown : new ApiError(0, 'the connection was lost');
      if (error.status === 401) return onRefused(error);
    }
    const pause = PAUSES[Math.min(failures++, PAUSES.length - 1)];
    onLost(error, Date.now() + pause);
    await sleep(pause, signal);
  }
}

/** @param {string} path @param {AbortSignal} signal @param {(data: any) => void} onData */
async function readOnce(path, signal, onData) {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE);
  const stop = () => silence.abort();
  signal.addEventListener('abort', stop);
  try {
    const response = await request(path, { signal: silence.signal, accept: 'text/event-stream' });
    const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
    const decoder = new TextDecoder();
    const parser = new SseParser();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE);
      for (const data of parser.push(decoder.decode(value, { stream: true }))) onData(JSON.parse(data));
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', stop);
  }
}

/** @param {number} milliseconds @param {AbortSignal} signal @returns {Promise<void>} */
function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener(
      'abort',
      () => {
        clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });
}
