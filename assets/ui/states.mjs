/** The engine's states in words and colours, and how far the run is. */

import { duration, number, plural } from './format.mjs';

/** Part of an engine's detail: it ended because all updates of its configuration are done (src/protocol/swarm.rs). */
const UPDATES_DONE = 'updates of ajet.trainer_common.total_training_steps are done';

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
 * Updates of the weights that are done before the current batch; 0 while offline.
 * @param {import('./protocol.mjs').Engine} engine
 */
export function updatesDone({ global_step }) {
  return Math.max(0, global_step - 1);
}

/**
 * Whether an evaluation runs: all claimed episodes are its.
 * @param {import('./protocol.mjs').Status} status
 */
export function isEvaluating({ engine, running }) {
  return (
    engine.status === 'ENGINE.ROLLING' && running.length > 0 && running.every((one) => one.episode_type === 'eval')
  );
}

/**
 * Updates that are done, of how many if that is limited; empty before the first engine.
 * @param {import('./protocol.mjs').Engine} engine
 * @param {number | null} lastUpdate Step of the last update.
 */
export function updatesText(engine, lastUpdate) {
  if (engine.global_step === 0) return lastUpdate == null ? '' : plural(lastUpdate, 'update');
  const done = updatesDone(engine);
  return engine.total_steps ? `${number(done)}/${plural(engine.total_steps, 'update')}` : plural(done, 'update');
}

/**
 * How the run ended, if no engine runs and there were updates.
 * @param {import('./protocol.mjs').Engine} engine
 * @param {number | null} lastUpdate Step of the last update.
 * @param {number} now Unix seconds.
 * @returns {{ word: string, sentence: string } | null}
 */
export function endOf({ status, detail, since }, lastUpdate, now) {
  if (status !== 'ENGINE.OFFLINE' || lastUpdate == null) return null;
  const isFinished = detail?.includes(UPDATES_DONE) ?? false;
  const word = isFinished ? 'Finished' : 'Ended';
  const ago = since > 0 ? `, ${duration(Math.max(1, Math.round(now - since)))} ago` : '';
  const why = detail && !isFinished ? `: ${detail}` : '';
  return { word, sentence: `${word.toLowerCase()} after ${plural(lastUpdate, 'update')}${ago}${why}` };
}

/**
 * How full the batch is, 0 to 1. Where the rule counts tasks, episodes of incomplete ones count as well. Pure.
 * @param {import('./protocol.mjs').Batch} batch
 */
export function batchShare({ unit, done, target, episodes, episodes_target }) {
  const ofRule = done / Math.max(1, target);
  const ofEpisodes = unit === 'tasks' ? episodes / Math.max(1, episodes_target) : 0;
  return Math.min(1, Math.max(ofRule, ofEpisodes));
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
