// The page's pure modules, by `node --test`.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';

const page = new URL('../../../assets/ui/', import.meta.url);
const { age, bytes, compact, duration, fixed, number, percent, signed } = await import(new URL('format.mjs', page));
const { clip, oneLine, tokenText, visible } = await import(new URL('text.mjs', page));
const { band, last, positive, smooth, trend } = await import(new URL('series.mjs', page));
const { address, parse } = await import(new URL('router.mjs', page));
const { command } = await import(new URL('keyboard.mjs', page));
const { SseParser } = await import(new URL('sse.mjs', page));
const { batchShare, endOf, shares, updatesText } = await import(new URL('states.mjs', page));
const { advantageScale, tokenClass } = await import(new URL('token_scale.mjs', page));
const { contentText } = await import(new URL('conversation.mjs', page));

test('hidden characters are shown as escapes', () => {
  for (const [text, shown] of [
    ['plain\ttext\n', 'plain\ttext\n'],
    ['a\r\nb\rc', 'a\nb\\u{d}c'],
    ['\u001b[31m', '\\u{1b}[31m'],
    ['gnp.\u202eexe', 'gnp.\\u{202e}exe'],
    ['zero\u200bwidth\ufeff\u00ad', 'zero\\u{200b}width\\u{feff}\\u{ad}'],
    ['\u{e0041}', '\\u{e0041}'],
    ['\ud800', '\\u{d800}'],
    ['👩\u200d💻 नमस्\u200dते', '👩\u200d💻 नमस्\u200dते'],
    ['<b>&amp;', '<b>&amp;'],
  ])
    assert.equal(visible(text), shown);
});

test('lines are short and have no breaks', () => {
  assert.equal(oneLine('a\n\n\tb'), 'a b');
  assert.equal(oneLine('x'.repeat(1e6), 5), 'xxxx…');
  assert.equal(clip('abc', 3), 'abc');
  assert.equal(tokenText('\t\n'), '⇥⏎\n');
  assert.equal(tokenText(''), '∅');
});

test('numbers', () => {
  for (const [value, shown] of [
    [0, '0'],
    [1234567, '1,234,567'],
    [0.12345, '0.1235'],
    [-1.5, '−1.5'],
    [12.345, '12.35'],
    [0.00012, '1.20e−4'],
    [-3e-18, '−3.00e−18'],
    [2.5e12, '2.50e12'],
    [null, '–'],
    [Number.NaN, '–'],
    [undefined, '–'],
  ])
    assert.equal(number(value), shown);
  assert.deepEqual(
    [fixed(0.5), fixed(-0.25, 1), signed(0.5), signed(-0.5), signed(0)],
    ['0.500', '−0.3', '+0.500', '−0.500', '0.000'],
  );
  assert.deepEqual([percent(0), percent(0.012), percent(0.5), percent(1)], ['0 %', '1.2 %', '50 %', '100 %']);
  assert.deepEqual([bytes(0), bytes(1536), bytes(8.2e9)], ['0 B', '1.5 KiB', '7.6 GiB']);
  assert.deepEqual([compact(999), compact(12345), compact(4.02e9)], ['999', '12.3K', '4B']);
});

test('durations', () => {
  for (const [seconds, shown] of [
    [0, '0 ms'],
    [0.0123, '12 ms'],
    [1, '1.0 s'],
    [9.96, '10 s'],
    [59.6, '1 min 0 s'],
    [125, '2 min 5 s'],
    [7500, '2 h 5 min'],
    [90_000, '1 d 1 h'],
    [-5, '−5.0 s'],
    [null, '–'],
  ])
    assert.equal(duration(seconds), shown);
  assert.deepEqual([age(0.4), age(3.7), age(-1), age(61)], ['0 s', '3 s', '0 s', '1 min 1 s']);
});

test('a smoothed series starts at its first value and keeps its gaps', () => {
  assert.deepEqual(smooth([1, 2, 3], 0), [1, 2, 3]);
  const [first, gap, third] = smooth([4, null, 4], 0.9);
  assert.equal(gap, null);
  assert.ok(Math.abs(first - 4) < 1e-12 && Math.abs(third - 4) < 1e-12);
  assert.deepEqual(positive([1, 0, -1, null]), [1, null, null, null]);
  assert.equal(last([1, 2, null]), 2);
  assert.equal(last([]), null);
});

test('a band is p10 to p90 where they are known, else the deviation within the bounds', () => {
  const columns = {
    reward_mean: [0.5, 0.9, null],
    reward_std: [0.2, 0.4, 0.1],
    reward_min: [0, 0, 0],
    reward_max: [1, 1, 1],
  };
  const spread = band((key) => columns[key], 'reward_');
  assert.deepEqual(
    [spread.low.map((v) => v?.toFixed(2)), spread.high.map((v) => v?.toFixed(2))],
    [
      ['0.30', '0.50', undefined],
      ['0.70', '1.00', undefined],
    ],
  );
  assert.deepEqual(
    band((key) => ({ ...columns, reward_p10: [1], reward_p90: [2] })[key], 'reward_'),
    { low: [1], high: [2], label: 'p10–p90' },
  );
  assert.equal(
    band(() => undefined, 'reward_'),
    null,
  );
});

test('a trend is told from noise, by the rule of src/trend.rs', () => {
  const curves = JSON.parse(readFileSync(new URL('../../fixtures/trends.json', import.meta.url), 'utf8'));
  for (const { name, values, word, window, difference } of curves) {
    const found = trend(values);
    assert.deepEqual([found?.word ?? null, found?.window ?? null], [word, window], name);
    assert.ok(Math.abs((found?.change ?? 0) - (difference ?? 0)) < 1e-3, name);
  }
  assert.equal(trend([null]), null);
});

test('a run that ended says how and when, and updates are counted one way', () => {
  const engine = { status: 'ENGINE.OFFLINE', detail: null, since: 40, global_step: 0, total_steps: null };
  assert.equal(endOf(engine, null, 100), null);
  assert.equal(endOf({ ...engine, status: 'ENGINE.ROLLING' }, 3, 100), null);
  const detail = 'all 3 updates of ajet.trainer_common.total_training_steps are done; more';
  for (const [told, word, sentence] of [
    [null, 'Ended', 'ended after 3 updates, 1 min 0 s ago'],
    ['out of memory', 'Ended', 'ended after 3 updates, 1 min 0 s ago: out of memory'],
    [detail, 'Finished', 'finished after 3 updates, 1 min 0 s ago'],
  ])
    assert.deepEqual(endOf({ ...engine, detail: told }, 3, 100), { word, sentence });
  for (const [global_step, total_steps, text] of [
    [0, null, '3 updates'],
    [2, null, '1 update'],
    [37, 300, '36/300 updates'],
  ])
    assert.equal(updatesText({ ...engine, global_step, total_steps }, 3), text);
});

test('episodes of incomplete tasks move the progress', () => {
  for (const [unit, done, episodes, share] of [
    ['tasks', 0, 64, 0.5],
    ['tasks', 12, 64, 0.75],
    ['tasks with different rewards', 4, 200, 0.25],
    ['clients', 0, 64, 0],
    ['tasks', 3, 500, 1],
  ])
    assert.equal(batchShare({ unit, done, target: 16, episodes, episodes_target: 128 }), share, `${done} ${unit}`);
});

test('addresses survive any task name', () => {
  for (const name of ['a/b', 'ü &?#=%', '<b>', '..', '']) {
    const place = parse(address('episodes', { task: name, step: 3, type: null }, name));
    assert.equal(place.view, 'episodes');
    assert.equal(place.id, name);
    assert.equal(place.query.task ?? '', name);
    assert.deepEqual([place.query.step, place.query.type], ['3', undefined]);
  }
  assert.deepEqual(parse(''), { view: 'overview', id: '', query: {} });
  assert.equal(parse('#/episode/%').id, '%');
});

test('keys and chords', () => {
  for (const [pending, key, meant, next] of [
    ['', 'g', null, 'g'],
    ['g', 'e', 'view:episodes', ''],
    ['g', 'x', null, ''],
    ['', '?', 'help', ''],
    ['', '/', 'search', ''],
    ['', 'e', null, ''],
    ['g', 'toString', null, ''],
    ['', 'toString', null, ''],
  ])
    assert.deepEqual(command(pending, key), { command: meant, pending: next }, `${pending} ${key}`);
});

test('events are split wherever the network splits them', () => {
  const stream = ': hello\n\nevent: status\ndata: {"a":1}\n\ndata: x\r\ndata: y\r\n\r\nid: 3\n\ndata:z\n\n';
  for (const size of [1, 3, 7, 1000]) {
    const parser = new SseParser();
    const found = [];
    for (let at = 0; at < stream.length; at += size) found.push(...parser.push(stream.slice(at, at + size)));
    assert.deepEqual(found, ['{"a":1}', 'x\ny', 'z'], `chunks of ${size}`);
  }
});

test('time by state', () => {
  const phases = [
    ['A', 0],
    ['B', 10],
    ['A', 20],
  ].map(([status, since]) => ({ status, since, global_step: 1 }));
  const found = shares(phases, 5, 30);
  assert.deepEqual(
    found.map(({ status, seconds }) => [status, seconds]),
    [
      ['A', 15],
      ['B', 10],
    ],
  );
  assert.deepEqual(shares([], 0, 10), []);
});

test('colours of tokens', () => {
  const row = {
    ids: [1, 2, 3, 4],
    texts: [],
    mask: [false, true, true, true],
    logprobs: [0, 0, -2.5, -99],
    advantages: [9, 2, -1, 0],
    truncated: false,
  };
  const classes = (mode) => row.mask.map((_, index) => tokenClass(mode, row, index, advantageScale(row)));
  assert.equal(advantageScale(row), 2);
  assert.deepEqual(classes('mask'), ['given', 'sampled', 'sampled', 'sampled']);
  assert.deepEqual(classes('logprob'), ['given', 'surprise-0', 'surprise-3', 'surprise-5']);
  assert.deepEqual(classes('advantage'), ['given', 'gain-5', 'loss-3', 'gain-0']);
  assert.equal(tokenClass('advantage', { ...row, advantages: null }, 1, 0), 'gain-0');
});

test('content of a message in all its forms', () => {
  for (const [content, text] of [
    ['a', 'a'],
    [null, ''],
    [undefined, ''],
    [[{ type: 'text', text: 'a' }, { type: 'image_url' }, 'b'], 'a\n[image_url]\nb'],
    [{ odd: 1 }, '{\n  "odd": 1\n}'],
    [[null], '[part]'],
  ])
    assert.equal(contentText(content), text);
});
