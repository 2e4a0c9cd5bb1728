/** The engine's states in words and colours. */

/** Word, colour variable and explanation of each state. */
const STATES = new Map(
  Object.entries({
    'ENGINE.OFFLINE': { word: 'Offline', color: '--phase-offline', doing: 'no engine runs' },
    'ENGINE.BOOTING': { word: 'Booting', color: '--phase-booting', doing: 'the engine loads its model' },
    'ENGINE.ROLLING': { word: 'Rolling', color: '--phase-rolling', doing: 'agents run episodes' },
    'ENGINE.ROLLING_POST': {
      word: 'Finishing',
      color: '--phase-post',
      doing: 'the batch is full; the last episodes end',
    },
    'ENGINE.WEIGHT_SYNCING': { word: 'Updating', color: '--phase-updating', doing: 'the weights are being updated' },
    'ENGINE.WEIGHT_EXPORTING': { word: 'Exporting', color: '--phase-updating', doing: 'a checkpoint is being written' },
  }),
);

/** @param {string} status Such as `ENGINE.ROLLING`. */
export function stateOf(status) {
  return STATES.get(status) ?? { word: status.replace('ENGINE.', ''), color: '--muted', doing: '' };
}

/** @param {string} status */
export function isUpdating(status) {
  return status === 'ENGINE.WEIGHT_SYNCING' || status === 'ENGINE.WEIGHT_EXPORTING';
}

/**
 * Returns the share of time spent in each state between `from` and `to`, largest first. Pure.
 * @param {import('./protocol.mjs').Phase[]} phases Oldest first.
 * @param {number} from @param {number} to
 * @returns {{ status: string, share: number, seconds: number }[]}
 */
export function shares(phases, from, to) {
  /** @type {Map<string, number>} */
  const seconds = new Map();
  phases.forEach(({ status, since }, index) => {
    const start = Math.max(since, from);
    const end = Math.min(phases[index + 1]?.since ?? to, to);
    if (end > start) seconds.set(status, (seconds.get(status) ?? 0) + end - start);
  });
  const total = [...seconds.values()].reduce((sum, s) => sum + s, 0) || 1;
  return [...seconds]
    .map(([status, s]) => ({ status, share: s / total, seconds: s }))
    .sort((a, b) => b.seconds - a.seconds);
}
