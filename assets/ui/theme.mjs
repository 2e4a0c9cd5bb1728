/** Dark and light: the system's preference until the reader chooses. */

const KEY = 'ajet-theme';

/** Applies the reader's earlier choice. */
export function restore() {
  const chosen = localStorage.getItem(KEY);
  if (chosen === 'dark' || chosen === 'light') document.documentElement.dataset.theme = chosen;
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', announce);
}

/** Switches between dark and light. */
export function toggle() {
  const next = isDark() ? 'light' : 'dark';
  document.documentElement.dataset.theme = next;
  localStorage.setItem(KEY, next);
  announce();
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
}

/**
 * Value of a colour variable, for canvases.
 * @param {string} name Such as `--accent`.
 */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Canvases draw again on this event. */
function announce() {
  document.dispatchEvent(new Event('themechange'));
}
