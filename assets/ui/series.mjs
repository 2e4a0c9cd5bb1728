/** Series of metrics: smoothing, bands and trends. Pure. */

/** @typedef {(number | null)[]} Values */
/** @typedef {'rising' | 'falling' | 'no clear change'} Direction */
/** @typedef {{ change: number, window: number, word: Direction }} Trend `window`: values in which the change is clear. */

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

/** Values that are looked at, at most. */
const LONGEST = 200;
/** Fewest values for a trend. */
const SHORTEST = 10;
/** Standard deviations of the Mann-Kendall statistic of noise that a clear change exceeds. */
const CLEAR = 3;
/** Differences up to this one are those of rounding. */
const ROUNDING = 1e-9;

/**
 * The latest clear change: of the last 10, 15, 22, 33, … values, the shortest window with one counts. The rule is that
 * of src/trend.rs; tests/fixtures/trends.json holds both to it.
 * @param {Values} values
 * @returns {Trend | null} Null for fewer than ten values.
 */
export function trend(values) {
  const known = /** @type {number[]} */ (values.filter((value) => value != null)).slice(-LONGEST);
  if (known.length < SHORTEST) return null;
  for (let window = SHORTEST; window < known.length; window = Math.floor((window * 3) / 2)) {
    const found = clearChange(known.slice(-window));
    if (found) return found;
  }
  return clearChange(known) ?? { change: change(known), window: known.length, word: 'no clear change' };
}

/**
 * The change of all values if the Mann-Kendall test, which asks of every pair whether the later one is larger, finds one
 * and the means of first and last quarter agree.
 * @param {number[]} values
 * @returns {Trend | null}
 */
function clearChange(values) {
  const count = values.length;
  let statistic = 0;
  for (let i = 0; i < count; i++) {
    for (let j = i + 1; j < count; j++) {
      const step = values[j] - values[i];
      if (Math.abs(step) > ROUNDING) statistic += Math.sign(step);
    }
  }
  const deviation = Math.sqrt((count * (count - 1) * (2 * count + 5)) / 18);
  const difference = change(values);
  if (Math.abs(statistic) <= CLEAR * deviation || difference * statistic <= 0) return null;
  return { change: difference, window: count, word: difference > 0 ? 'rising' : 'falling' };
}

/** Mean of the last quarter minus that of the first. @param {number[]} values */
function change(values) {
  const quarter = Math.ceil(values.length / 4);
  return mean(values.slice(-quarter)) - mean(values.slice(0, quarter));
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
