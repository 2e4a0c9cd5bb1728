/** One episode: what was said, and the tokens that were trained on. */

import { getJson } from '../api.mjs';
import { ConversationView } from '../conversation.mjs';
import { fill, h, setText, show } from '../dom.mjs';
import { compact, duration, fixed, number, plural, time } from '../format.mjs';
import { address, replaceQuery } from '../router.mjs';
import { oneLine, visible } from '../text.mjs';
import { advantageScale } from '../token_scale.mjs';
import { TokenView, tokenLegend } from '../token_view.mjs';
import { messageOf, panel, segmented } from './view.mjs';

/** @typedef {import('../protocol.mjs').EpisodeDetail} EpisodeDetail */
/** @typedef {import('../protocol.mjs').EpisodeSummary} EpisodeSummary */

/** Time between two loads of a running episode, in milliseconds. */
const FOLLOW = 1500;
/** Episodes of the group at most. */
const SIBLINGS = 64;

/**
 * @param {import('./view.mjs').App} app
 * @param {import('../router.mjs').Address} place
 * @returns {import('./view.mjs').View}
 */
export function episode(app, { id, query }) {
  const run = query.run ?? '';
  const state = {
    tab: query.tab ?? 'said',
    mode: /** @type {import('../token_scale.mjs').Mode} */ (query.mode ?? 'mask'),
  };
  const aborter = new AbortController();
  const note = h('p', { class: 'empty', role: 'status' }, 'Loading…');
  const facts = h('dl', { class: 'facts' });
  const group = h('nav', { class: 'chips', 'aria-label': 'Episodes of the same task and step' });
  const said = h('div');
  const tokens = h('div', { class: 'token-rows' });
  const tabs = segmented(
    'Part',
    [
      ['said', 'Conversation'],
      ['tokens', 'Tokens'],
      ['metrics', 'Metrics'],
    ],
    state.tab,
    (tab) => choose({ tab }),
  );
  const metrics = h('div');
  const title = h('h1', { class: 'ellipsis' }, oneLine(id, 60));
  const element = h(
    'div',
    { class: 'view episode' },
    h(
      'div',
      { class: 'episode-head' },
      h('a', { href: address('episodes', { run }), class: 'muted' }, '← Episodes'),
      title,
    ),
    facts,
    group,
    h('div', { class: 'toolbar' }, tabs.element),
    note,
    said,
    tokens,
    metrics,
  );
  /** @type {EpisodeDetail | null} */
  let shown = null;
  let withTokens = false;
  /** @type {string[]} */
  let siblings = [];
  /** @type {ConversationView[]} */
  const views = [];
  let timer = 0;

  /** @param {Partial<typeof state>} changed */
  function choose(changed) {
    Object.assign(state, changed);
    replaceQuery(shownQuery());
    showTab();
  }

  /** The query of this view, without what is the default. */
  function shownQuery() {
    return { run, tab: state.tab === 'said' ? '' : state.tab, mode: state.mode === 'mask' ? '' : state.mode };
  }

  function showTab() {
    show(said, state.tab === 'said');
    show(tokens, state.tab === 'tokens');
    show(metrics, state.tab === 'metrics');
    if (state.tab === 'tokens' && !withTokens) load();
  }

  async function load() {
    clearTimeout(timer);
    const wantsTokens = state.tab === 'tokens';
    try {
      /** @type {EpisodeDetail} */
      const detail = await getJson(`/episodes/${encodeURIComponent(id)}`, {
        query: { run, tokens: wantsTokens || '' },
        signal: aborter.signal,
      });
      const changed = JSON.stringify(detail) !== JSON.stringify(shown);
      withTokens = wantsTokens;
      if (changed) draw(detail, wantsTokens);
      shown = detail;
      if (detail.running) timer = setTimeout(load, FOLLOW);
    } catch (error) {
      if (aborter.signal.aborted) return;
      show(note, true);
      setText(note, `Cannot load the episode: ${oneLine(messageOf(error), 300)}`);
    }
  }

  /** @param {EpisodeDetail} detail @param {boolean} hasTokens */
  function draw(detail, hasTokens) {
    const { summary, running, conversations } = detail;
    setText(title, oneLine(summary.task_id || id, 90));
    fill(facts, factsOf(summary, running, run));
    const told = conversations.length > 0;
    show(note, !told);
    setText(note, told ? '' : nothingSaid(summary, running));
    showConversations(conversations);
    fill(metrics, metricsOf(detail));
    if (hasTokens)
      fill(
        tokens,
        tokenRows(detail, state.mode, (mode) => choose({ mode })),
      );
    if (!running && siblings.length === 0) showGroup(summary);
  }

  /** @param {EpisodeDetail['conversations']} conversations */
  function showConversations(conversations) {
    while (views.length < conversations.length) views.push(new ConversationView());
    const count = conversations.length;
    views.slice(0, count).forEach((one, index) => {
      const model = conversations[index].model;
      const title = `Conversation ${index + 1} of ${count}${model ? `, ${oneLine(model, 60)}` : ''}`;
      one.set(conversations[index], count > 1 ? title : '');
      if (!one.element.isConnected) said.append(one.element);
    });
  }

  /** @param {EpisodeSummary} summary */
  async function showGroup({ task_id, global_step, episode_type, episode_uuid }) {
    if (!task_id) return;
    try {
      /** @type {import('../protocol.mjs').Episodes} */
      const page = await getJson('/episodes', {
        query: { run, task: task_id, step: global_step, type: episode_type, sort: 'ended', limit: SIBLINGS },
        signal: aborter.signal,
      });
      const same = page.episodes.filter((one) => one.task_id === task_id);
      siblings = same.map((one) => one.episode_uuid);
      if (same.length > 1) {
        fill(
          group,
          h('span', { class: 'muted' }, 'Same task:'),
          same.map((one) =>
            h(
              'a',
              {
                class: 'chip',
                href: address('episode', shownQuery(), one.episode_uuid),
                'aria-current': one.episode_uuid === episode_uuid ? 'page' : null,
              },
              fixed(one.reward, 2),
            ),
          ),
        );
      }
    } catch {
      // The row of siblings is an extra; the episode itself is shown.
    }
  }

  /** @param {1 | -1} by Episodes of the group. */
  function step(by) {
    const next = siblings[siblings.indexOf(id) + by];
    if (!siblings.includes(id) || !next) return false;
    location.hash = address('episode', shownQuery(), next);
    return true;
  }

  showTab();
  if (state.tab !== 'tokens') load();
  return {
    element,
    step,
    destroy() {
      aborter.abort();
      clearTimeout(timer);
    },
  };
}

/** @param {EpisodeSummary} summary @param {boolean} running @param {string} run */
function factsOf(summary, running, run) {
  const outcome = summary.is_success == null ? '' : summary.is_success ? 'success' : 'no success';
  /** @type {[string, import('../dom.mjs').Child][]} */
  const facts = [
    ['Reward', running ? 'running' : h('b', { class: 'big' }, fixed(summary.reward))],
    [
      'Outcome',
      [summary.dropped && `dropped: ${oneLine(summary.dropped, 60)}`, outcome].filter(Boolean).join(', ') || '–',
    ],
    [
      'Step',
      h(
        'a',
        { href: address('episodes', { run, step: summary.global_step }) },
        `${number(summary.global_step)}, ${summary.episode_type}`,
      ),
    ],
    ['LLM calls', number(summary.llm_calls)],
    ['Tokens', `${compact(summary.prompt_tokens)} prompt, ${compact(summary.completion_tokens)} sampled`],
    ['Time', running ? 'running' : `${duration(summary.seconds)}, ended ${time(summary.ended)}`],
    ['Client', oneLine(summary.client_uuid, 40)],
    ['Tag', summary.tag ? oneLine(summary.tag, 40) : ''],
  ];
  return facts
    .filter(([, value]) => value !== '')
    .map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value)));
}

/** @param {EpisodeSummary} summary @param {boolean} running */
function nothingSaid(summary, running) {
  if (running) return 'No LLM call has been answered yet. This view follows the episode.';
  if (summary.llm_calls === 0) return 'The agent made no LLM call.';
  return 'The transcript is not kept; ajet.trainer_common.save_trajectory_as_json_file keeps them.';
}

/** @param {EpisodeDetail} detail */
function metricsOf({ log_metrics }) {
  const entries = Object.entries(log_metrics);
  if (entries.length === 0)
    return h('p', { class: 'empty' }, 'The client sent no metrics with this episode (log_metrics).');
  return h(
    'table',
    { class: 'plain' },
    h(
      'tbody',
      {},
      entries.map(([name, value]) =>
        h(
          'tr',
          {},
          h('th', { scope: 'row' }, oneLine(name, 80)),
          h(
            'td',
            { class: 'number' },
            typeof value === 'number' ? number(value) : visible(JSON.stringify(value)).slice(0, 2000),
          ),
        ),
      ),
    ),
  );
}

/**
 * @param {EpisodeDetail} detail
 * @param {import('../token_scale.mjs').Mode} mode
 * @param {(mode: import('../token_scale.mjs').Mode) => void} onMode
 */
function tokenRows({ rows, running }, mode, onMode) {
  if (rows.length === 0) {
    return [
      h(
        'p',
        { class: 'empty' },
        running ? 'Tokens are shown when the episode has ended.' : 'The tokens of this episode are not kept.',
      ),
    ];
  }
  const views = rows.map((row) => new TokenView(row));
  const scale = rows.reduce((largest, row) => Math.max(largest, advantageScale(row)), 0);
  const key = h('div');
  const hasAdvantages = rows.some((row) => row.advantages != null);
  /** @param {import('../token_scale.mjs').Mode} chosen */
  function color(chosen) {
    for (const view of views) view.setMode(chosen);
    const isAdvantage = chosen === 'advantage';
    const unknown = 'The advantages are known after the update.';
    const none = 'All advantages are zero: the rewards of the task are equal, so nothing is learnt from it.';
    const text = isAdvantage && (hasAdvantages ? scale === 0 && none : unknown);
    fill(key, text ? h('p', { class: 'muted' }, text) : tokenLegend(chosen, scale));
  }
  color(mode);
  /** @type {[string, string][]} */
  const modes = [
    ['mask', 'Mask'],
    ['logprob', 'Log-probability'],
    ['advantage', 'Advantage'],
  ];
  return [
    h(
      'div',
      { class: 'toolbar' },
      segmented('Colour by', modes, mode, (chosen) => {
        color(/** @type {any} */ (chosen));
        onMode(/** @type {any} */ (chosen));
      }).element,
      key,
    ),
    ...rows.map((row, index) => panel(rowTitle(row, index, rows.length), views[index].element)),
  ];
}

/** @param {import('../protocol.mjs').TokenRow} row @param {number} index @param {number} count */
function rowTitle({ ids, mask, truncated }, index, count) {
  const sampled = mask.filter(Boolean).length;
  const which = count > 1 ? `Row ${index + 1} of ${count}` : 'Training row';
  const cut = truncated ? ', cut by a token limit' : '';
  return `${which}: ${plural(ids.length, 'token')}, ${number(sampled)} sampled${cut}`;
}
