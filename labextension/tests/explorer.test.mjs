// The explorer without a page: its guard against foreign figures, and sums at a moment.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { FREE } from '../lib/categories.js';
import { decoded, decodedCloseup, learn } from '../lib/explorer/data.js';
import { nextBox } from '../lib/explorer/boxes.js';
import { checkFigure, ForeignFigureError } from '../lib/explorer/figures.js';
import { phaseSums } from '../lib/explorer/compact.js';
import { sorted } from '../lib/explorer/largest.js';
import { columnsOf } from '../lib/explorer/spark.js';
import { roomFor } from '../lib/explorer/ticks.js';
import { holdersAt, restAt, rowOf } from '../lib/explorer/moments.js';
import { tiledAt } from '../lib/explorer/poolmap.js';
import { inkOn } from '../lib/explorer/theme.js';
import { byteTicks, countTicks } from '../lib/explorer/ticks.js';
import { together } from '../lib/explorer/times.js';

const KEYS = (
  'weights buffers gradients optimizer_state inputs activations output_gradients temporaries ' +
  'workspace communication user_tensors unknown rounding pending cached_releasable cached_stuck ' +
  'context other_processes free'
).split(' ');

const FRESH = () => ({
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
    number: [0, 3],
    born: [-1, 1],
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
const DATA = decoded(FRESH());

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

test('the small curve keeps the peak, and a column without a moment goes on', () => {
  const data = decoded({
    ...FRESH(),
    duration: 20,
    events: 8,
    peak: { event: 4, allocated: 151, reserved: 151, process: null }
  });
  assert.deepEqual(
    columnsOf(data, true, 8),
    [100 / 151, 100 / 151, 100 / 151, 100 / 151, 1, 1, 1, 1].map((part, i) =>
      i < 4 ? 101 / 151 : part
    )
  );
});

test('a phase is told by the highest of its turns and the time of all of them', () => {
  const turn = (name, t0, t1, peak, depth = 0) => ({ name, t0, t1, peak, depth });
  const phases = [turn(0, 0, 5, 7), turn(1, 5, 6, 9), turn(0, 6, 10, 8), turn(0, 7, 8, 99, 1)];
  assert.deepEqual(phaseSums({ ...DATA, phases, texts: ['forward', 'backward'] }), [
    { name: 'forward', peak: 8, took: 9, turns: 2 },
    { name: 'backward', peak: 9, took: 1, turns: 1 }
  ]);
});

test('what a column does not say is last, whichever way it is sorted', () => {
  const names = ['', 'b.10', 'a', 'b.9'];
  const by = sign => [...names].sort((a, b) => sorted(a, b, sign));
  assert.deepEqual(by(1), ['a', 'b.9', 'b.10', '']);
  assert.deepEqual(by(-1), ['b.10', 'b.9', 'a', '']);
});

test('a narrow axis has fewer texts', () => {
  assert.deepEqual(
    [40, 200, 1200].map(width => roomFor(width)),
    [1, 2, 8]
  );
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

const POOL = {
  unit: 512,
  segments: [
    [4, 1, 0, 0],
    [40, 2, 7, 3]
  ],
  tilings: [
    [4, -2],
    [1, 5, 2, 3, -1],
    [30, 133, 9, 10, 10, -2]
  ],
  states: [
    [0, 0, 1, 1, 1, 0],
    [1, 2, 1, -1]
  ]
};

test('the pool is tiled at every moment as it was written', () => {
  const data = decoded({ ...FRESH(), pool: POOL });
  const shown = event =>
    tiledAt(data.pools, event).map(([segment, pieces]) => [
      segment.size / 512,
      pieces.map(({ size, state, category, blocks, free }) => [
        size / 512,
        state,
        category,
        blocks,
        free
      ])
    ]);
  assert.deepEqual(shown(0), [[4, [[4, 'releasable', -1, 0, null]]]]);
  assert.deepEqual(shown(4), [
    [
      40,
      [
        [30, 'used', 5, 9, 5120],
        [10, 'releasable', -1, 0, null]
      ]
    ],
    [
      4,
      [
        [1, 'used', 5, 2, null],
        [3, 'stuck', -1, 0, null]
      ]
    ]
  ]);
  assert.deepEqual(shown(10), [[4, [[4, 'releasable', -1, 0, null]]]]);
});

test('what a kernel tells of a moment is added once, and the sums stay right', () => {
  const data = decoded({ ...FRESH(), pool: POOL });
  const told = decodedCloseup(data, {
    moments: {
      event: [4, 1],
      t: [10, 0],
      held: [
        [0, [50, 100]],
        [12, [0, 3]]
      ],
      live: [[0, [3, 1]]],
      line: [-1, 1]
    },
    lives: {
      number: [3, 4],
      born: [0, 4],
      freed: [99, 99],
      category: [0, 0],
      requested: [30, 50],
      block: [512, 512],
      name: [-1, 2],
      group: [0, 3],
      shape: [-1, -1],
      dtype: [-1, -1],
      born_in: [-1, -1],
      line: [-1, 1]
    },
    pool: { ...POOL, states: [[0, 1], []] },
    pool_event: 5,
    texts: ['model.down', 'train.py:9', 'late', 'model.up']
  });
  learn(data, told);
  learn(data, told);
  assert.deepEqual(data.moments.event, [0, 4, 5, 10]);
  assert.deepEqual(data.moments.held[0], [100, 150, 150, 150]);
  assert.deepEqual(
    data.moments.line.map(line => data.texts[line] ?? ''),
    ['', '', 'train.py:9', '']
  );
  assert.deepEqual(data.lives.number, [0, 3, 7]);
  assert.equal(data.lives.group[2], 1);
  assert.equal(rowOf(data, 5), 2);
  const [weights] = holdersAt(data, 2);
  assert.deepEqual(
    weights.parts.map(({ label, bytes }) => [label, bytes]),
    [
      ['model.up', 120],
      ['model.down', 30]
    ]
  );
  assert.equal(tiledAt(data.pools, 5).length, 1);
  assert.equal(tiledAt(data.pools, 4).length, 2);
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

test('times are put back where they were taken from', () => {
  const still = {
    total: 9,
    moments: { event: [0, 2] },
    bands: [[0, 2, 1, -1]],
    phases: [{ name: 0, first: 0 }],
    steps: [[0, 7, 8]],
    cells: [[3, 0, 2]],
    history: [{ label: 'a' }]
  };
  const times = {
    about: 'in 5 us',
    by_event: true,
    duration: 5,
    t: [0, 4],
    bands: [[1, 3]],
    phases: [[1, 4]],
    steps: [1],
    cells: [[0, 5]],
    history: [6]
  };
  assert.deepEqual(together(still, times), {
    total: 9,
    about: 'in 5 us',
    by_event: true,
    duration: 5000,
    moments: { event: [0, 2], t: [0, 4000] },
    bands: [[1000, 3000, 0, 2, 1, -1]],
    phases: [{ name: 0, first: 0, t0: 1000, t1: 4000 }],
    steps: [[0, 1000, 7, 8]],
    cells: [[3, 0, 5000, 0, 2]],
    history: [{ label: 'a', duration: 6000 }]
  });
});

test('a text in a box has the contrast that can be read', () => {
  const teal = '#44AA99';
  assert.equal(inkOn('#0072B2'), '#FFFFFF');
  assert.equal(inkOn(teal), '#1B1F24');
  assert.equal(inkOn('#882255'), '#FFFFFF');
  assert.equal(inkOn('#882255', 0.4, false), '#1B1F24'); // the paper shines through
  assert.equal(inkOn(teal, 0.4, true), '#FFFFFF');
});

test('the parts of the host at a moment that a kernel tells are learnt with it', () => {
  const raw = FRESH();
  const parts = [{ key: 'files', of: 'process', label: 'of it files', meaning: '' }];
  const data = decoded({ ...raw, parts, moments: { ...raw.moments, parts: [[7, -2, -6]] } });
  assert.deepEqual(data.moments.parts, [[7, 5, -1]]);
  const told = decodedCloseup(data, {
    moments: { event: [5], t: [12], held: [], live: [], parts: [[6]] },
    lives: FRESH().lives,
    pool: { segments: [], tilings: [], states: [] },
    pool_event: 5,
    texts: []
  });
  learn(data, told);
  assert.deepEqual(data.moments.event, [0, 4, 5, 10]);
  assert.deepEqual(data.moments.parts, [[7, 5, 6, -1]]);
  assert.deepEqual(DATA.parts, []); // a card's
});

test('what grows has the categories of this front end, and older outputs have none', () => {
  const growth = {
    steps: [0],
    events: [4],
    allocated: [1],
    words: '',
    holders: [{ category: 18 }]
  };
  const older = decoded({ ...FRESH(), growth });
  assert.equal(older.growth.holders[0].category, FREE);
  assert.equal(DATA.growth, null);
  assert.equal(decoded({ ...FRESH(), growth: { ...growth, steps: [] } }).growth, null);
});

test('a key goes to the next box of the row, and to the one above or below', () => {
  const box = (left, right, top) => ({ left, right, top });
  // Two categories; three holders, the last of the second category; no tensor below the first.
  const boxes = [box(0, 60, 0), box(0, 20, 1), box(20, 60, 1), box(60, 100, 0), box(60, 90, 1)];
  const go = (key, at) => nextBox(key, at, boxes);
  assert.deepEqual([go('ArrowRight', 0), go('ArrowLeft', 3)], [3, 0]);
  assert.deepEqual([go('ArrowRight', 3), go('ArrowLeft', 0)], [null, null]);
  assert.deepEqual([go('ArrowRight', 1), go('ArrowRight', 2)], [2, 4]);
  assert.deepEqual([go('Home', 4), go('End', 1)], [1, 4]);
  assert.deepEqual([go('ArrowDown', 0), go('ArrowDown', 3)], [2, 4]); // below its middle
  assert.deepEqual([go('ArrowUp', 1), go('ArrowUp', 4), go('ArrowUp', 0)], [0, 3, null]);
  assert.deepEqual([go('x', 0), go('Tab', 0), nextBox('Home', 0, [])], [null, null, null]);
});
