/** Colour classes of tokens. Pure. */

/** @typedef {import('./protocol.mjs').TokenRow} TokenRow */
/** @typedef {'mask' | 'logprob' | 'advantage'} Mode */

/** Levels of a scale. */
export const LEVELS = 5;
/** Log-probability at which a token has the strongest colour: 1 in 150. */
export const LEAST_LOGPROB = -5;

/**
 * Largest absolute advantage of the trained tokens, 0 if there is none.
 * @param {TokenRow} row
 */
export function advantageScale(row) {
  const sizes = row.advantages?.map((advantage, index) => (row.mask[index] ? Math.abs(advantage) : 0)) ?? [];
  return sizes.reduce((largest, size) => Math.max(largest, size), 0);
}

/**
 * Class of a token: `given` for what the model did not sample, else a level from 0 to {@link LEVELS}.
 * @param {Mode} mode
 * @param {TokenRow} row
 * @param {number} index
 * @param {number} scale {@link advantageScale} of the row.
 */
export function tokenClass(mode, row, index, scale) {
  if (!row.mask[index]) return 'given';
  if (mode === 'mask') return 'sampled';
  if (mode === 'logprob') return `surprise-${level(row.logprobs[index] / LEAST_LOGPROB)}`;
  const advantage = row.advantages?.[index] ?? 0;
  if (scale === 0 || advantage === 0) return 'gain-0';
  return `${advantage > 0 ? 'gain' : 'loss'}-${Math.max(1, level(Math.abs(advantage) / scale))}`;
}

/** @param {number} share */
function level(share) {
  return Number.isFinite(share) ? Math.round(Math.max(0, Math.min(1, share)) * LEVELS) : 0;
}
