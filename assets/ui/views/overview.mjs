/** Overview: is it learning, what is it doing, and for how long. */

import { getJson } from '../api.mjs';
import { Chart, legend } from '../charts.mjs';
import { fill, h, setText, show } from '../dom.mjs';
import { age, compact, duration, fixed, number, plural, signed } from '../format.mjs';
import { PhaseBand } from '../phase_band.mjs';
import { address } from '../router.mjs';
import { band, last, smooth, trend } from '../series.mjs';
import { batchShare, endOf, isEvaluating, isUpdating, stateOf, updatesDone } from '../states.mjs';
import { oneLine } from '../text.mjs';
import { figure, panel, startHint } from './view.mjs';

/** @typedef {import('../protocol.mjs').Status} Status */

/** Steps from which the curve is shown smoothed as well. */
const MANY = 120;

/**
 * @param {import('./view.mjs').App} app
 * @returns {import('./view.mjs').View}
 */
export function overview(app) {
  const state = stateCard(app);
  const figures = keyFigures(app);
  const reward = rewardChart(app);
  const phases = new PhaseBand();
  const episodes = notableEpisodes(app);
  const clients = h('div');
  const trained = h('dl', { class: 'facts' });
  const trainedPanel = panel('The trained model', trained);
  const element = h(
    'div',
    { class: 'view overview' },
    h('div', { class: 'top' }, state.element, figures.element),
    trainedPanel,
    h(
      'div',
      { class: 'columns' },
      h('div', {}, panel('Reward by step', reward.element), panel('What the engine did', phases.element)),
      h('div', {}, panel('Episodes to read', episodes.element), panel('Clients of the batch', clients)),
    ),
  );
  return {
    element,
    update() {
      const { status } = app.store;
      if (!status) return;
      state.update(status);
      const end = endOf(status.engine, app.history.lastUpdate(), app.store.now());
      show(trainedPanel, end != null);
      if (end && status.experiment) fill(trained, nextSteps(status.experiment.directory).map(fact));
      figures.update(status);
      reward.update(status);
      phases.set(status.engine.phases, app.store.now());
      episodes.update(status);
      showClients(clients, status, app.store.now());
    },
    destroy: reward.destroy,
  };
}

/** @param {import('./view.mjs').App} app */
function stateCard(app) {
  const word = h('strong', { class: 'state-word' });
  const since = h('span', { class: 'muted' });
  const doing = h('p', { class: 'doing' });
  const bar = h('progress', { max: 1, value: 0, 'aria-label': 'Progress to the next update' });
  const count = h('span');
  const left = h('span', { class: 'muted' });
  const rule = h('p', { class: 'muted small' });
  const earlier = earlierRuns();
  const element = h(
    'section',
    { class: 'panel state' },
    h('h2', {}, 'Now'),
    h('p', { class: 'state-line' }, word, ' ', since),
    doing,
    h('div', { class: 'progress' }, bar, h('p', { class: 'progress-line' }, count, left)),
    rule,
    earlier.element,
  );
  /** @param {Status} status */
  function update(status) {
    const { engine, batch } = status;
    const evaluating = isEvaluating(status);
    earlier.update(status);
    const end = endOf(engine, app.history.lastUpdate(), app.store.now());
    const { word: name, color, doing: what } = stateOf(engine.status);
    setText(word, end?.word ?? name);
    word.style.setProperty('--dot', `var(${color})`);
    setText(since, engine.since > 0 && !end ? `for ${age(app.store.now() - engine.since)}` : '');
    setText(doing, oneLine(end?.sentence || engine.detail || (evaluating ? 'an evaluation runs' : what), 400));
    const updating = isUpdating(engine.status);
    const running = engine.status !== 'ENGINE.OFFLINE' && engine.status !== 'ENGINE.BOOTING';
    show(/** @type {Element} */ (bar.closest('.progress')), running && batch.target > 0);
    bar.value = updating ? 1 : batchShare(batch);
    setText(
      count,
      updating
        ? `training on ${plural(batch.episodes, 'episode')}`
        : batchText(batch),
    );
    const until = updating ? 'until rolling' : 'to the next update';
    setText(
      left,
      evaluating
        ? 'the next update comes after the evaluation'
        : batch.seconds_left == null ? `time ${until} unknown` : `about ${duration(batch.seconds_left)} ${until}`,
    );
    setText(rule, running && batch.rule ? `${batch.rule}, ${plural(batch.repeats, 'episode')} a task` : '');
  }
  return { element, update };
}

/** A link to the runs of a server that has started none yet, as after its restart. */
function earlierRuns() {
  const element = h('p', { hidden: true });
  let asked = false;
  /** @param {Status} status */
  function update({ experiment, engine }) {
    if (experiment || engine.status !== 'ENGINE.OFFLINE') return show(element, false);
    if (asked) return;
    asked = true;
    getJson('/runs').then(
      (/** @type {import('../protocol.mjs').Runs} */ { runs: [newest] }) => {
        show(element, newest != null);
        if (newest) fill(element, h('a', { href: address('runs') }, `Earlier runs, last ${oneLine(newest.name, 60)}`));
      },
      () => {}, // a link less
    );
  }
  return { element, update };
}

/** @param {import('../protocol.mjs').Batch} batch */
function batchText({ unit, done, target, episodes, episodes_target }) {
  const ofRule = `${number(done)} of ${number(target)} ${unit}`;
  const isAll = unit === 'episodes' || episodes_target === 0;
  return isAll ? ofRule : `${ofRule}, ${number(episodes)} of ${plural(episodes_target, 'episode')}`;
}

/**
 * Where the model of a run that ended is, and what can be done with it.
 * @param {string} directory Of the experiment, on the server's machine.
 * @returns {[string, string][]}
 */
function nextSteps(directory) {
  const at = oneLine(directory, 300);
  return [
    ['Checkpoint', `${at}/checkpoints`],
    ['Talk to it', `ajet-swarm chat ${at}`],
    ['Serve it', `ajet-swarm serve ${at}`],
    ['Fetch it', `ajet-swarm fetch my-model --swarm-url ${location.origin}`],
    ['Go on', `ajet-swarm start --continue=${at}`],
  ];
}

/** @param {[string, string]} fact */
function fact([name, value]) {
  return h('div', {}, h('dt', {}, name), h('dd', {}, value));
}

/** @param {import('./view.mjs').App} app */
function keyFigures(app) {
  const step = figure('Updates', 'Updates of the weights that are done');
  const reward = figure('Reward', 'Mean of the last update, and the latest clear change within 200 updates');
  const evaluation = figure('Eval reward', 'Mean of the last evaluation');
  const batch = figure('This batch', 'Mean reward of the finished episodes, and their 10th to 90th percentile');
  const speed = figure('Sampling', 'Mean of the last 10 seconds');
  const episodes = figure('Episodes');
  const all = [step, reward, evaluation, batch, speed, episodes];
  const element = h(
    'dl',
    { class: 'figures' },
    all.map((one) => one.element),
  );
  /** @param {Status} status */
  function update({ engine, batch: current, sampling, running_total, claimed_total, dropped, latest_eval }) {
    const done = engine.global_step === 0 ? app.history.lastUpdate() : updatesDone(engine);
    setText(step.value, engine.total_steps ? `${number(done)} / ${number(engine.total_steps)}` : number(done));
    const rest = secondsToEnd(app, engine);
    setText(step.remark, rest == null ? '' : `about ${duration(rest)} left`);
    const rewards = (app.history.column('reward_mean') ?? []).filter((value) => value != null);
    const direction = trend(rewards);
    setText(reward.value, fixed(rewards.at(-1)));
    setText(reward.remark, trendText(direction, rewards.length));
    reward.remark.dataset.trend = direction?.word ?? '';
    const evals = latest_eval?.metrics['eval/reward_mean'] ?? last(app.history.column('eval/reward_mean') ?? []);
    setText(evaluation.value, fixed(evals));
    setText(evaluation.remark, evals == null ? 'none yet' : evalText(app.history, evals));
    setText(batch.value, fixed(current.reward?.mean));
    setText(batch.remark, current.reward ? spreadText(current.reward) : 'none finished');
    setText(speed.value, sampling ? `${compact(Math.round(sampling.tokens_per_second))} tok/s` : '–');
    setText(
      speed.remark,
      sampling ? `${number(Math.round(sampling.episodes_per_second * 10) / 10)} episodes/s` : 'no engine runs',
    );
    setText(episodes.value, `${number(running_total)} running`);
    const claimed = claimed_total > 0 ? `${number(claimed_total)} only claimed; ` : '';
    setText(episodes.remark, `${claimed}${droppedText(dropped)}`);
  }
  return { element, update };
}

/**
 * Updates before the last evaluation, and the change since the first.
 * @param {import('../history.mjs').History} history
 * @param {number} latest
 */
function evalText(history, latest) {
  const { steps } = history;
  const values = history.column('eval/reward_mean') ?? [];
  const first = values.findIndex((value) => value != null);
  const end = values.findLastIndex((value) => value != null);
  if (first < 0) return '';
  // The weights of step N are those after N - 1 updates.
  const [firstUpdates, updates] = [first, end].map((index) => Math.max(0, steps[index] - 1));
  const at = `after ${plural(updates, 'update')}`;
  const change = signed(latest - (values[first] ?? latest));
  if (first === end) return at;
  return `${at}, ${change} since ${firstUpdates === 0 ? 'the start' : `update ${number(firstUpdates)}`}`;
}

/** @param {import('../protocol.mjs').Distribution} reward */
function spreadText({ p10, p90, count }) {
  return `${fixed(p10, 2)} to ${fixed(p90, 2)}, ${plural(count, 'episode')}`;
}

/**
 * Seconds to the last step, by the duration of the last ones.
 * @param {import('./view.mjs').App} app
 * @param {import('../protocol.mjs').Engine} engine
 */
function secondsToEnd({ history }, { status, total_steps, global_step }) {
  const [rolling, post, update] = ['rolling', 'post', 'update'].map((name) =>
    history.column(`seconds/${name}`)?.slice(-20),
  );
  if (!total_steps || !rolling || !update || status === 'ENGINE.OFFLINE') return null;
  const seconds = rolling
    .map((value, index) => (value ?? 0) + (post?.[index] ?? 0) + (update[index] ?? 0))
    .filter((sum) => sum > 0);
  if (seconds.length === 0) return null;
  return (Math.max(0, total_steps - global_step + 1) * seconds.reduce((sum, value) => sum + value, 0)) / seconds.length;
}

/** @param {ReturnType<typeof trend>} direction @param {number} updates */
function trendText(direction, updates) {
  if (updates === 0) return 'no update yet';
  if (!direction) return `too early for a trend (${plural(updates, 'update')})`;
  const { word, change, window } = direction;
  const over = `over ${plural(window, 'update')}`;
  if (word === 'no clear change') return `→ ${word} ${over}`;
  return `${word === 'rising' ? '▲' : '▼'} ${word}, ${signed(change)} ${over}`;
}

/** @param {Record<string, number>} dropped */
function droppedText(dropped) {
  const known = Object.entries(dropped)
    .filter(([, count]) => count > 0)
    .sort((a, b) => b[1] - a[1]);
  if (known.length === 0) return 'none dropped';
  return `dropped: ${known
    .slice(0, 3)
    .map(([reason, count]) => `${number(count)} ${oneLine(reason, 30)}`)
    .join(', ')}`;
}

/** @param {import('./view.mjs').App} app */
function rewardChart(app) {
  const chart = new Chart({ height: 260, title: 'Reward by step' });
  const key = h('div');
  const empty = h('p', { class: 'empty' });
  let drawn = '';
  /** @param {Status} status */
  function update(status) {
    const { steps } = app.history;
    const mean = app.history.column('reward_mean');
    const evals = app.history.column('eval/reward_mean');
    const any = Boolean(mean || evals);
    show(chart.element, any);
    show(empty, !any);
    setText(
      empty,
      !any && !app.history.loaded
        ? 'Loading…'
        : status.experiment
          ? 'The curve begins with the first update.'
          : `No experiment yet. ${startHint()}`,
    );
    const state = `${app.history.run} ${steps.length} ${steps.at(-1)} ${last(evals ?? [])}`;
    if (!any || state === drawn) return;
    drawn = state;
    const spread = band((name) => app.history.column(name), 'reward_');
    const isLong = steps.length > MANY;
    const lines = [
      ...(mean
        ? [
            {
              label: 'reward',
              values: mean,
              ...(isLong ? { kind: /** @type {const} */ ('thin'), color: '--accent-thin' } : {}),
              ...(spread ? { band: spread } : {}),
            },
          ]
        : []),
      ...(mean && isLong ? [{ label: 'smoothed', values: smooth(mean, 0.9) }] : []),
      ...(evals ? [{ label: 'eval', values: evals, kind: /** @type {const} */ ('points'), color: '--text' }] : []),
    ];
    chart.set(steps, lines);
    fill(
      key,
      legend([
        { label: 'mean of the update', color: isLong ? '--accent-thin' : '--accent' },
        ...(isLong ? [{ label: 'smoothed', color: '--accent' }] : []),
        ...(spread ? [{ label: spread.label, color: '--accent-band', kind: /** @type {const} */ ('band') }] : []),
        ...(evals ? [{ label: 'evaluation', color: '--text', kind: /** @type {const} */ ('points') }] : []),
      ]),
    );
  }
  return { element: h('div', {}, chart.element, empty, key), update, destroy: () => chart.destroy() };
}

/** Least time between two looks for notable episodes, in milliseconds: steps may be shorter. */
const NOTABLE_PAUSE = 3000;

/** Links to the worst, the best and the latest episode. @param {import('./view.mjs').App} app */
function notableEpisodes(app) {
  const list = h('div', { class: 'notable' });
  let asked = '';
  let askedAt = 0;
  /** @param {Status} status */
  function update({ engine, experiment }) {
    if (!experiment) return fill(list, h('p', { class: 'empty' }, 'Episodes are listed here when they have ended.'));
    const lastUpdate = app.history.lastUpdate();
    const key = `${experiment?.name} ${engine.global_step} ${lastUpdate}`;
    if (!app.history.loaded || key === asked || document.hidden || Date.now() - askedAt < NOTABLE_PAUSE) return;
    [asked, askedAt] = [key, Date.now()];
    const found =
      lastUpdate == null
        ? load(Math.max(1, engine.global_step), 'the batch so far')
        : load(lastUpdate, `step ${number(lastUpdate)}`);
    found.then(
      (found) => fill(list, found),
      () => {
        asked = '';
      },
    );
  }
  return { element: list, update };

  /** @param {number} step @param {string} name What the step is called. */
  async function load(step, name) {
    /** @param {string} sort @param {number | null} of */
    const first = async (sort, of) => {
      /** @type {import('../protocol.mjs').Episodes} */
      const page = await getJson('/episodes', {
        query: { sort, limit: 1, step: of, type: of == null ? null : 'train' },
      });
      return page.episodes[0];
    };
    const [worst, best, latest] = await Promise.all([
      first('reward', step),
      first('-reward', step),
      first('-ended', null),
    ]);
    if (!latest) return [h('p', { class: 'empty' }, 'No episode has ended yet. Running ones are under Episodes.')];
    return [
      worst && link(`Worst of ${name}`, worst),
      best && link(`Best of ${name}`, best),
      link('Latest', latest),
      h('p', {}, h('a', { href: address('episodes', { sort: 'reward' }) }, 'Train episodes, worst first')),
    ];
  }
}

/** @param {string} label @param {import('../protocol.mjs').EpisodeSummary} episode */
function link(label, episode) {
  return h(
    'a',
    { class: 'card', href: address('episode', {}, episode.episode_uuid) },
    h('span', {}, label),
    h('b', { class: 'number' }, fixed(episode.reward)),
    h('span', { class: 'muted ellipsis' }, `${episode.episode_type} · ${oneLine(episode.task_id || 'no task', 60)}`),
    h('span', { class: 'muted number' }, plural(episode.llm_calls, 'call')),
  );
}

/** Clients that are listed. */
const CLIENTS = 12;

/** @param {HTMLElement} parent @param {Status} status @param {number} now */
function showClients(parent, { clients, engine }, now) {
  if (clients.length === 0) {
    const isOffline = engine.status === 'ENGINE.OFFLINE';
    const hint = isOffline ? 'No engine runs.' : `No client takes part. ${startHint()}`;
    return fill(parent, h('p', { class: 'empty' }, hint));
  }
  const rows = clients
    .slice(0, CLIENTS)
    .map((client) =>
      h(
        'li',
        {},
        h('span', { class: 'ellipsis' }, oneLine(client.client_uuid, 48)),
        h('span', { class: 'muted number' }, clientText(client, now)),
      ),
    );
  const more = clients.length - rows.length;
  fill(parent, h('ul', { class: 'rows' }, rows), more > 0 && h('p', { class: 'muted' }, `and ${number(more)} more`));
}

/** @param {import('../protocol.mjs').ClientInfo} client @param {number} now */
function clientText({ running, finished, last_activity, agreed }, now) {
  const seen = age(now - last_activity);
  return `${number(running)} claimed, ${number(finished)} finished, seen ${seen} ago${agreed ? ', agreed' : ''}`;
}
