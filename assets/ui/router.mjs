/** Addresses of views in the URL's fragment: `#/episodes?type=eval&step=3`, `#/episode/ID`. */

/** @typedef {{ view: string, id: string, query: Record<string, string> }} Address */

/**
 * @param {string} fragment With or without `#`.
 * @returns {Address}
 */
export function parse(fragment) {
  const [path = '', query = ''] = fragment.replace(/^#?\/?/, '').split('?', 2);
  const [view = '', ...id] = path.split('/');
  return { view: view || 'overview', id: decoded(id.join('/')), query: Object.fromEntries(new URLSearchParams(query)) };
}

/**
 * @param {string} view
 * @param {Record<string, string | number | null | undefined>} [query] Empty values are left out.
 * @param {string} [id]
 * @returns {string}
 */
export function address(view, query = {}, id = '') {
  const given = Object.entries(query).filter(([, value]) => value != null && value !== '');
  const search = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return `#/${view}${id && `/${encodeURIComponent(id)}`}${search && `?${search}`}`;
}

/**
 * Changes the query of the shown view without a new entry in the history.
 * @param {Record<string, string | number | null | undefined>} query
 */
export function replaceQuery(query) {
  const { view, id } = parse(location.hash);
  history.replaceState(null, '', address(view, query, id));
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a stray percent sign
  }
}
