/** The access token: typed once, or taken from a link. It stays in this tab and is sent only as a header. */

const KEY = 'ajet-token';

/**
 * Takes the token out of the address (`/ui#token=…`, or `/t/TOKEN/ui`), so that it does not stay in the history.
 */
export function takeFromAddress() {
  const inFragment = /^#token=([^&]+)/.exec(location.hash)?.[1];
  const inPath = /\/t\/([^/]+)\/+ui\/?$/.exec(location.pathname)?.[1];
  const token = inFragment ?? inPath;
  if (!token) return;
  save(token);
  const path = location.pathname.replace(/\/t\/[^/]+(\/+ui\/?)$/, '$1');
  history.replaceState(null, '', `${path}${inFragment ? '#/overview' : location.hash}`);
}

/** @returns {string | null} */
export function read() {
  return sessionStorage.getItem(KEY);
}

/** @param {string} token */
export function save(token) {
  sessionStorage.setItem(KEY, token.trim());
}

export function forget() {
  sessionStorage.removeItem(KEY);
}
