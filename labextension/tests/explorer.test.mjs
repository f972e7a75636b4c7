// The explorer without a page: its guard against foreign figures, and sums at a moment.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { decoded } from '../lib/explorer/data.js';
import { checkFigure, ForeignFigureError } from '../lib/explorer/figures.js';
import { holdersAt, restAt, rowOf } from '../lib/explorer/moments.js';
import { byteTicks, countTicks } from '../lib/explorer/ticks.js';

const KEYS = (
  'weights buffers gradients optimizer_state inputs activations output_gradients temporaries ' +
  'workspace communication user_tensors unknown rounding pending cached_releasable cached_stuck ' +
  'context other_processes free'
).split(' ');

const DATA = decoded({
  total: 1000,
  categories: KEYS.map(key => ({ key, label: key, meaning: '' })),
  texts: ['model.up.weight', 'model.up', 'model.down.weight', 'model.down'],
  moments: {
    event: [0, 4, 6],
    t: [0, 10, 10],
    held: [
      [0, [100, 50, 0]],
      [12, [1, 0, 0]]
    ],
    live: [[0, [2, 3, 0]]],
    line: [-1, -1, -1]
  },
  lives: {
    born: [-1, 0],
    freed: [99, 99],
    category: [0, 0],
    requested: [70, 30],
    block: [512, 512],
    name: [0, 2],
    group: [1, 3],
    shape: [-1, -1],
    dtype: [-1, -1],
    born_in: [-1, -1],
    line: [-1, -1]
  }
});

const object = (name, attributes = {}) => ({ type: 'object', name, id: 'p1', attributes });

test('a figure of nbmem passes', () => {
  checkFigure({ doc: { roots: [object('Plot', { renderers: [object('GlyphRenderer')] })] } });
});

for (const [what, node] of [
  ['code', object('CustomJS', { code: 'alert(1)' })],
  ['markup', object('Div', { text: '<b>' })],
  ['a formula', object('Title', { text: '$$x$$' })],
  ['a style', object('Plot', { stylesheets: ['* { background: url(https://x.test) }'] })],
  ['a callback', object('Plot', { js_event_callbacks: { tap: [1] } })],
  ['an unknown kind', { type: 'callable', name: 'x' }],
  ['a prototype', object('constructor')]
]) {
  test(`a figure with ${what} is refused`, () => {
    assert.throws(
      () => checkFigure({ doc: { roots: [object('Plot', { a: [node] })] } }),
      ForeignFigureError
    );
  });
}

test('the categories of every moment add up to the card', () => {
  for (const row of [0, 1, 2]) {
    const sum = DATA.moments.held.reduce((all, column) => all + column[row], 0);
    assert.equal(sum, 1000);
  }
});

test('an event is at the nearest moment', () => {
  assert.deepEqual(
    [0, 1, 3, 4, 8, 999].map(event => rowOf(DATA, event)),
    [0, 0, 1, 1, 2, 2]
  );
});

test('holders add up at every level, what is not told one by one included', () => {
  const [weights] = holdersAt(DATA, 1);
  assert.equal(weights.bytes, 150);
  assert.deepEqual(
    weights.parts.map(({ label, bytes }) => [label, bytes]),
    [
      ['model.up', 70],
      ['model.down', 30],
      ['3 smaller', 50]
    ]
  );
  assert.deepEqual(restAt(DATA, 1, 0, [0, 1]), { bytes: 50, count: 3 });
});

test('ticks are round, few, and inside', () => {
  assert.deepEqual(
    byteTicks(0, 3 * 2 ** 30, 3).map(tick => tick.text),
    ['0 GiB', '1 GiB', '2 GiB', '3 GiB']
  );
  assert.deepEqual(
    countTicks(0.5, 2.5).map(tick => tick.at),
    [1, 2]
  );
  assert.deepEqual(countTicks(3, 3), []);
});
