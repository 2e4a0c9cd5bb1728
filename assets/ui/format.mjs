/** Numbers, durations and times for people. Every function returns `–` for what is unknown. */

const NONE = '–';

/**
 * A number with up to four significant digits.
 * @param {number | null | undefined} value
 * @returns {string}
 */
export function number(value) {
  if (value == null || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size < 1e-3 || size >= 1e9)
    return value.toExponential(2).replace('e+', 'e').replace('-', '−').replace('e-', 'e−');
  if (Number.isInteger(value)) return minus(value.toLocaleString('en-US'));
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  return minus(value.toLocaleString('en-US', { maximumFractionDigits: digits }));
}

/**
 * A number with a fixed number of decimals, for columns.
 * @param {number | null | undefined} value
 * @param {number} decimals
 */
export function fixed(value, decimals = 3) {
  return value == null || !Number.isFinite(value) ? NONE : minus(value.toFixed(decimals));
}

/**
 * A difference, with its sign.
 * @param {number | null | undefined} value
 */
export function signed(value) {
  if (value == null || !Number.isFinite(value)) return NONE;
  const text = fixed(value);
  return value > 0 ? `+${text}` : text;
}

/** @param {number | null | undefined} share 0 to 1. */
export function percent(share) {
  if (share == null || !Number.isFinite(share)) return NONE;
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

/** @param {number | null | undefined} bytes */
export function bytes(bytes) {
  if (bytes == null || !Number.isFinite(bytes)) return NONE;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  const value = bytes / 1024 ** power;
  return `${value.toFixed(power > 0 && value < 100 ? 1 : 0)} ${units[power]}`;
}

/** @param {number | null | undefined} count */
export function compact(count) {
  if (count == null || !Number.isFinite(count)) return NONE;
  if (count < 10_000) return number(count);
  return count.toLocaleString('en-US', { notation: 'compact', maximumFractionDigits: 1 });
}

/**
 * A duration in its two largest units.
 * @param {number | null | undefined} seconds
 * @returns {string}
 */
export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return NONE;
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor(whole / 60) % 60} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor(whole / 3600) % 24} h`;
}

/**
 * A duration in whole seconds at least, for ages that tick.
 * @param {number | null | undefined} seconds
 */
export function age(seconds) {
  return duration(seconds == null ? seconds : Math.max(0, Math.floor(seconds)))
    .replace(/^0 ms$/, '0 s')
    .replace('.0 s', ' s');
}

/**
 * Local time of day; with the date if it is not today.
 * @param {number | null | undefined} unix Unix seconds.
 */
export function time(unix) {
  if (!unix) return NONE;
  const date = new Date(unix * 1000);
  const clock = date.toLocaleTimeString('en-GB');
  return date.toDateString() === new Date().toDateString() ? clock : `${date.toLocaleDateString('en-CA')} ${clock}`;
}

/** @param {string} uuid Its beginning, which is enough to tell a few apart. */
export function shortId(uuid) {
  return uuid.length > 10 ? uuid.slice(0, 8) : uuid;
}

/** @param {number} count @param {string} noun */
export function plural(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? '' : 's'}`;
}

/** @param {string} text */
function minus(text) {
  return text.replace('-', '−');
}
