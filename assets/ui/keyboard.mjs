/** Keys. A chord such as `g o` is two keys within a second and a half. */

/** Views by the key that follows `g`. */
export const GO = new Map([
  ['o', 'overview'],
  ['t', 'training'],
  ['e', 'episodes'],
  ['k', 'tasks'],
  ['n', 'engine'],
  ['r', 'runs'],
  ['l', 'log'],
]);

const SINGLE = new Map([
  ['?', 'help'],
  ['/', 'search'],
  ['[', 'previous-view'],
  [']', 'next-view'],
  ['Escape', 'back'],
  ['d', 'theme'],
  ['ArrowLeft', 'step-back'],
  ['ArrowRight', 'step-on'],
]);

/** What the help shows. */
export const HELP = [
  ['?', 'show or hide this list'],
  ['g o', 'Overview'],
  ['g t', 'Training'],
  ['g e', 'Episodes'],
  ['g k', 'Tasks'],
  ['g n', 'Engine'],
  ['g r', 'Runs'],
  ['g l', 'Log'],
  ['[  ]', 'previous and next view'],
  ['/', 'search or filter'],
  ['↑ ↓', 'move in a list; also k and j'],
  ['Enter', 'open the selected row'],
  ['← →', 'previous and next token, episode or page'],
  ['Esc', 'leave a field, or go back'],
  ['d', 'switch between dark and light'],
];

/**
 * Returns what a key means, and the chord that it begins. Pure.
 * @param {string} pending The chord so far: `g` or empty.
 * @param {string} key
 * @returns {{ command: string | null, pending: string }}
 */
export function command(pending, key) {
  if (pending === 'g') return { command: GO.has(key) ? `view:${GO.get(key)}` : null, pending: '' };
  if (key === 'g') return { command: null, pending: 'g' };
  return { command: SINGLE.get(key) ?? null, pending: '' };
}

/**
 * Listens for commands. Keys typed into fields are left to them, except Escape.
 * @param {(command: string) => boolean} run Returns whether the command did something.
 */
export function listen(run) {
  let pending = '';
  let since = 0;
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
    if (event.key !== '?' && document.querySelector('dialog[open]')) return; // its own keys
    const field = event.target instanceof HTMLElement && event.target.closest('input, select, textarea');
    if (field) {
      if (event.key === 'Escape') /** @type {HTMLElement} */ (field).blur();
      return;
    }
    const chord = event.timeStamp - since < 1500 ? pending : '';
    const meant = command(chord, event.key);
    pending = meant.pending;
    since = event.timeStamp;
    if (meant.command && run(meant.command)) event.preventDefault();
  });
}
