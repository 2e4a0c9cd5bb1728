/** Building elements. Text only ever becomes text nodes: nothing here parses markup. */

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * Creates an element. `props` are attributes, except `class`, `onX` (listeners) and properties such as `value`.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [props]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) setProp(element, name, value);
  append(element, children.flat());
  return element;
}

/** @param {HTMLElement} element @param {string} name @param {any} value */
function setProp(element, name, value) {
  if (value == null || value === false) return;
  if (name.startsWith('on')) element.addEventListener(name.slice(2).toLowerCase(), value);
  else if (name === 'class') element.className = value;
  else if (name === 'value' || name === 'checked') /** @type {any} */ (element)[name] = value;
  else element.setAttribute(name, value === true ? '' : String(value));
}

/** @param {Element} parent @param {Child[]} children */
function append(parent, children) {
  for (const child of children) {
    if (child == null || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

/**
 * Replaces the children.
 * @param {Element} parent
 * @param {...(Child | Child[])} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children.flat());
}

/**
 * Sets the text if it differs: unchanged nodes keep the reader's selection.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {Element} element @param {boolean} shown */
export function show(element, shown) {
  element.toggleAttribute('hidden', !shown);
}

/**
 * Keeps the children of `parent` equal to `items`, reusing the element of each key.
 * @template T
 * @template {HTMLElement} E
 * @param {HTMLElement} parent
 * @param {T[]} items
 * @param {(item: T) => string} key
 * @param {(item: T) => E} create
 * @param {(element: E, item: T) => void} update
 */
export function reconcile(parent, items, key, create, update) {
  /** @type {Map<string, E>} */
  const old = new Map();
  for (const child of parent.children) old.set(/** @type {E} */ (child).dataset.key ?? '', /** @type {E} */ (child));
  let next = parent.firstElementChild;
  for (const item of items) {
    const id = key(item);
    const known = old.get(id);
    const element = known ?? create(item);
    element.dataset.key = id;
    old.delete(id);
    update(element, item);
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
  for (const gone of old.values()) gone.remove();
}
