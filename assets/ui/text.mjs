/**
 * Safe display of foreign text. Agents and clients must not control, hide or reorder what a reader sees, so control
 * characters, directional marks and zero-width characters are shown as escapes. Joiners stay: emoji and some scripts
 * need them. The rule is that of src/terminal.rs.
 */

// eslint-disable-next-line no-control-regex
const HIDDEN = new RegExp(
  '[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e' +
    '\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}]|\\p{Surrogate}',
  'gu',
);

/**
 * Escapes hidden characters, as in `\u{1b}`. Line feeds and tabs stay.
 * @param {unknown} text
 * @returns {string}
 */
export function visible(text) {
  return String(text).replaceAll('\r\n', '\n').replace(HIDDEN, escape);
}

/**
 * As {@link visible}, on one line.
 * @param {unknown} text
 * @param {number} [limit] Maximum number of characters.
 * @returns {string}
 */
export function oneLine(text, limit = 200) {
  return clip(
    visible(
      String(text)
        .slice(0, 8 * limit)
        .replace(/[\r\n\t]+/g, ' '),
    ),
    limit,
  );
}

/**
 * Returns the text, or its beginning with an ellipsis.
 * @param {string} text
 * @param {number} limit Maximum number of characters.
 * @returns {string}
 */
export function clip(text, limit) {
  return text.length > limit ? `${text.slice(0, limit - 1)}…` : text;
}

/**
 * Returns the text of one token with its white space made visible. Line feeds stay, so that lines break where the
 * text breaks.
 * @param {string} text
 * @returns {string}
 */
export function tokenText(text) {
  return visible(text).replaceAll('\t', '⇥').replaceAll('\n', '⏎\n') || '∅';
}

/** @param {string} character */
function escape(character) {
  return `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`;
}
