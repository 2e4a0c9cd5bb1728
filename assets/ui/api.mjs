/** Requests to the server that this page came from. */

import * as token from './token.mjs';

/** @typedef {Record<string, string | number | boolean | null | undefined>} Query Empty values are left out. */

/** An answer that is not a success. `status` is 0 if the server could not be reached. */
export class ApiError extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * Requests `path` with the token.
 * @param {string} path
 * @param {{ query?: Query, signal?: AbortSignal, accept?: string }} [options]
 * @returns {Promise<Response>}
 */
export async function request(path, { query = {}, signal, accept = 'application/json' } = {}) {
  const given = Object.entries(query).filter(([, value]) => value != null && value !== '');
  const search = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  const secret = token.read();
  /** @type {Record<string, string>} */
  const headers = { accept };
  if (secret) headers.authorization = `Bearer ${secret}`;
  let response;
  try {
    response = await fetch(search ? `${path}?${search}` : path, {
      headers,
      signal,
      cache: 'no-store',
      redirect: 'error',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, 'cannot reach the server');
  }
  if (!response.ok) throw new ApiError(response.status, await detail(response));
  return response;
}

/**
 * Requests JSON.
 * @param {string} path
 * @param {Parameters<typeof request>[1]} [options]
 * @returns {Promise<any>}
 */
export async function getJson(path, options) {
  const response = await request(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (options?.signal?.aborted) throw error;
    throw new ApiError(0, 'the answer ended early');
  }
}

/** @param {Response} response */
async function detail(response) {
  try {
    const body = await response.json();
    return String(body.detail ?? body.error?.message ?? response.statusText);
  } catch {
    return response.statusText || `HTTP ${response.status}`;
  }
}
