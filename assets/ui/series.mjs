/** Series of metrics: smoothing, bands and trends. Pure. */

/** @typedef {(number | null)[]} Values */
/** @typedef {'rising' | 'falling' | 'flat' | 'too early to tell'} Direction */
/** @typedef {{ recent: number, change: number | null, word: Direction }} Trend */

/**
 * Exponential moving average, corrected for its start. Gaps stay gaps.
 * @param {Values} values
 * @param {number} weight Share of the past, 0 (none) to less than 1.
 * @returns {Values}
 */
export function smooth(values, weight) {
  if (!(weight > 0)) return values;
  let sum = 0;
  let total = 0;
  return values.map((value) => {
    if (value == null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

/**
 * Spread of the rewards: p10 to p90 where the run has them, else mean ± standard deviation within minimum and maximum.
 * @param {(key: string) => Values | undefined} column
 * @param {string} prefix Such as `reward_`.
 * @returns {{ low: Values, high: Values, label: string } | null}
 */
export function band(column, prefix) {
  const [p10, p90] = [column(`${prefix}p10`), column(`${prefix}p90`)];
  if (p10 && p90) return { low: p10, high: p90, label: 'p10–p90' };
  const [mean, std] = [column(`${prefix}mean`), column(`${prefix}std`)];
  if (!mean || !std) return null;
  const [min, max] = [column(`${prefix}min`), column(`${prefix}max`)];
  const low = mean.map((m, i) => spread(m, std[i], -1, min?.[i]));
  const high = mean.map((m, i) => spread(m, std[i], 1, max?.[i]));
  return { low, high, label: '± standard deviation' };
}

/**
 * @param {number | null} mean
 * @param {number | null | undefined} std
 * @param {1 | -1} sign
 * @param {number | null | undefined} bound
 */
function spread(mean, std, sign, bound) {
  if (mean == null || std == null) return null;
  const value = mean + sign * std;
  if (bound == null) return value;
  return sign < 0 ? Math.max(value, bound) : Math.min(value, bound);
}

/**
 * Mean of the last `window` values against that of the `window` before.
 * @param {Values} values
 * @param {number} window
 * @returns {Trend | null}
 */
export function trend(values, window = 10) {
  const known = /** @type {number[]} */ (values.filter((value) => value != null));
  if (known.length === 0) return null;
  const recent = known.slice(-window);
  const before = known.slice(-2 * window, -window);
  if (before.length < window) return { recent: mean(recent), change: null, word: 'too early to tell' };
  const change = mean(recent) - mean(before);
  // Two standard errors of a difference of means: less may be chance.
  const noise = 2 * Math.sqrt((variance(recent) + variance(before)) / window);
  const word = Math.abs(change) <= noise ? 'flat' : change > 0 ? 'rising' : 'falling';
  return { recent: mean(recent), change, word };
}

/** @param {Values} values */
export function last(values) {
  for (let i = values.length - 1; i >= 0; i--) if (values[i] != null) return values[i];
  return null;
}

/**
 * Keeps what a logarithmic scale can show.
 * @param {Values} values
 * @returns {Values}
 */
export function positive(values) {
  return values.map((value) => (value != null && value > 0 ? value : null));
}

/** @param {number[]} values */
function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** @param {number[]} values */
function variance(values) {
  const centre = mean(values);
  return values.reduce((sum, value) => sum + (value - centre) ** 2, 0) / Math.max(1, values.length - 1);
}
