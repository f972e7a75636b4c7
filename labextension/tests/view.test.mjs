// What the explorer shows of a recording, without a page: stretches, columns, strips, words, choices.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ACTIVE, CATEGORIES, FREE, LIVE, PENDING, PROCESS, RESERVED } from '../lib/categories.js';
import { Choice } from '../lib/explorer/choice.js';
import { fitting, phaseIn } from '../lib/explorer/figures.js';
import { keptAt, numbered, shadesOf, stepInWords, stepOf } from '../lib/explorer/growth.js';
import { nextStop } from '../lib/explorer/keys.js';
import { growingLines } from '../lib/explorer/lines.js';
import {
  allocatedAt,
  formatTime,
  holderInWords,
  inWords,
  livesAt,
  peakBetween,
  phaseAt,
  sumAt
} from '../lib/explorer/moments.js';
import { growthInWords } from '../lib/explorer/phases.js';
import { partOf } from '../lib/explorer/spark.js';
import { cacheHides } from '../lib/explorer/timeline.js';
import { timeTicks } from '../lib/explorer/ticks.js';
import { columnsIn, rowOfX, shown, stripsOf, zoomedAbout } from '../lib/explorer/view.js';
import { OTHER_TINT, PHASE_TINTS } from '../lib/palette.js';

const column = (...values) => values;
const HELD = {
  weights: column(10, 10, 10, 10),
  activations: column(0, 30, 60, 0),
  rounding: column(1, 2, 3, 1),
  pending: column(0, 0, 5, 0),
  cached_stuck: column(9, 8, 0, 7),
  context: column(50, 50, 50, 50)
};
const DATA = {
  total: 1000,
  duration: 4e9,
  events: 40,
  categories: CATEGORIES,
  texts: ['forward', 'backward', 'train.py:7', 'cell one', 'cell two'],
  moments: {
    event: [0, 10, 20, 40],
    t: [0, 1500, 2e6, 4e9],
    held: CATEGORIES.map(({ key }) => HELD[key] ?? [0, 0, 0, 0]),
    live: [],
    line: [-1, 2, -1, -1]
  },
  // Start, duration, first event, events, name, step.
  bands: [
    [0, 1000, 0, 12, 0, 0],
    [1000, 1000, 12, 8, 1, 0],
    [2000, 1000, 20, 10, 0, 1],
    [3000, 500, 30, 5, -1, -1]
  ],
  cells: [
    [3, 0, 2000, 0, 20],
    [4, 2000, 4000, 20, 40]
  ],
  phases: [{ step: 0, before: 100 }],
  steps: [],
  lives: { born: [-1, 5, 15], freed: [40, 19, 40], requested: [10, 30, 60], category: [0, 5, 5] }
};

test('the sums of the categories are those of the ledger, one inside the other', () => {
  assert.ok(LIVE < ACTIVE && ACTIVE < RESERVED && RESERVED < PROCESS && PROCESS < FREE);
  assert.deepEqual(
    [LIVE, ACTIVE, RESERVED, PROCESS].map(count => sumAt(DATA, 2, count)),
    [70, 78, 78, 128]
  );
  assert.equal(allocatedAt(DATA, 2), 73); // what waits for a stream is free
  assert.equal(CATEGORIES[PENDING].key, 'pending');
});

test('a moment is told by its time, its event, its phase and its line', () => {
  assert.equal(inWords(DATA, 1), '2 us · event 10 · forward, step 0 · train.py:7');
  assert.equal(inWords(DATA, 3), '4.00 s · event 40');
  assert.deepEqual(
    [0, 1, 12, 13, 21, 33, 39].map(event => phaseAt(DATA, event)),
    ['', 'forward, step 0', 'forward, step 0', 'backward, step 0', 'forward, step 1', '', '']
  );
  assert.deepEqual([999, 1500, 2.5e6, 61e9].map(formatTime), ['1 us', '2 us', '2.5 ms', '61.00 s']);
});

test('the highest moment of a stretch is of that stretch alone', () => {
  assert.equal(peakBetween(DATA, 0, 40), 2);
  assert.equal(peakBetween(DATA, 0, 15), 1);
  assert.equal(peakBetween(DATA, 30, 40), 3);
});

test('who lives at a moment was born before it and is freed behind it', () => {
  assert.deepEqual(livesAt(DATA, 0), [0]);
  assert.deepEqual(livesAt(DATA, 1), [1, 0]);
  assert.deepEqual(livesAt(DATA, 2), [2, 0]);
});

test('what is shown lies inside of the whole, at any zoom', () => {
  assert.deepEqual(shown(-50, 50, 1000), [0, 100]);
  assert.deepEqual(shown(990, 1090, 1000), [900, 1000]);
  assert.deepEqual(shown(-1, 2000, 1000), [0, 1000]);
  assert.deepEqual(shown(500, 500, 1e6), [500, 550]); // no narrower than 1 of 20,000
});

test('a zoom leaves the place that it is about where it is', () => {
  const view = [100, 300];
  for (const at of [100, 150, 300]) {
    for (const factor of [0.5, 1, 1.6]) {
      const [low, high] = zoomedAbout(at, view, factor);
      assert.ok(Math.abs((at - low) / (high - low) - (at - 100) / 200) < 1e-9);
      assert.ok(Math.abs(high - low - 200 / factor) < 1e-9);
    }
  }
});

test('each column of pixels shows its highest moment, and a quiet one what went before', () => {
  const at = [0, 10, 11, 12, 90];
  const heights = [5, 1, 9, 2, 3];
  assert.deepEqual(columnsIn(at, heights, [0, 100], 10), [
    [0, 10, 20, 90, 100],
    [0, 2, 3, 4, 4]
  ]);
  assert.deepEqual(columnsIn(at, heights, [20, 80], 3), [
    [20, 80],
    [3, 3]
  ]);
  assert.deepEqual(columnsIn([50], [1], [0, 100], 4), [
    [50, 100],
    [0, 0]
  ]);
  assert.deepEqual(
    [0, 9, 10, 11.5, 1000].map(x => rowOfX(at, x)),
    [0, 0, 1, 2, 4]
  );
});

test('the strips are cells, steps and phases, by time or by events', () => {
  const { strips, rows } = stripsOf(DATA, true);
  assert.equal(rows, 3);
  assert.deepEqual(
    strips.map(({ left, right, row, text }) => [left, right, row, text]),
    [
      [0, 20, 0, 'cell one'],
      [20, 40, 0, 'cell two'],
      [0, 20, 1, 'step 0'],
      [20, 30, 1, 'step 1'],
      [0, 12, 2, 'forward'],
      [12, 20, 2, 'backward'],
      [20, 30, 2, 'forward']
    ]
  );
  assert.equal(strips[4].tint, PHASE_TINTS.get('forward'));
  assert.equal(strips[0].tint, OTHER_TINT);
  assert.deepEqual(stripsOf(DATA, false).strips[3].right, 3000);
  assert.deepEqual(stripsOf({ ...DATA, cells: DATA.cells.slice(1), bands: [] }, true), {
    strips: [],
    rows: 0
  });
});

test('a moment has its part of the recording, and none lies behind its end', () => {
  assert.deepEqual(
    [0, 1, 3].map(row => partOf(DATA, row, true)),
    [0, 0.25, 1]
  );
  assert.equal(partOf({ ...DATA, duration: 0 }, 3, false), 1);
  assert.equal(partOf({ ...DATA, events: 10 }, 3, true), 1);
});

test('arrows go from button to button and stop at the ends', () => {
  const keys = ['ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'Home', 'End', 'x'];
  const from = at => keys.map(key => nextStop(key, at, 3));
  assert.deepEqual(from(0), [0, 1, 0, 1, 0, 2, null]);
  assert.deepEqual(from(1), [0, 2, 0, 2, 0, 2, null]);
  assert.deepEqual(from(2), [1, 2, 1, 2, 0, 2, null]);
  assert.deepEqual(
    from(-1),
    keys.map(() => null)
  ); // the focus is on no button
  assert.equal(nextStop('toString', 1, 3), null);
});

test('a choice is told once, to all who listen, and only if it is another one', () => {
  const choice = new Choice({ moment: 1, span: null, tensor: null });
  const heard = [];
  const end = choice.listen(now => heard.push(now.moment));
  choice.set({ moment: 1 });
  choice.set({ span: [1, 2] });
  choice.set({ span: [1, 2] });
  choice.set({ moment: 3, tensor: 7 });
  end();
  choice.set({ moment: 4 });
  assert.deepEqual(heard, [1, 3]);
  assert.deepEqual(choice.now, { moment: 4, span: [1, 2], tensor: 7 });
});

test('a name is cut to its room: a path from its front, a phase to its short name', () => {
  assert.equal(fitting('model.layer.0.weight', 500), 'model.layer.0.weight');
  assert.equal(fitting('model.layer.0.weight', 75), '…0.weight');
  assert.equal(fitting('a sentence of words', 60), 'a sente…');
  assert.equal(fitting('anything', 20), '');
  assert.deepEqual(
    [80, 30, 12].map(width => phaseIn('backward', width)),
    ['backward', 'bwd', '']
  );
});

test('growth is told from the second step on', () => {
  const steps = (...left) => left.map((bytes, step) => [step, 0, 0, bytes]);
  assert.equal(growthInWords({ ...DATA, steps: steps(500, 500) }), '');
  assert.equal(
    growthInWords({ ...DATA, steps: steps(612, 612, 612) }),
    'Step 0 leaves +512 B; from step 1 on nothing grows.'
  );
  assert.equal(
    growthInWords({ ...DATA, steps: steps(612, 700, 800, 900) }),
    'Step 0 leaves +512 B; from step 1 on each one leaves +100 B.'
  );
});

test('what stands under the pointer names the category unless it is one', () => {
  const holder = { label: 'model.fc', bytes: 2048, category: 0, life: null, parts: [] };
  assert.equal(holderInWords(DATA, holder), 'model.fc: 2.0 KiB, weights');
  assert.equal(holderInWords(DATA, { ...holder, label: 'weights' }), 'weights: 2.0 KiB');
});

test('ticks of time have the unit of the whole', () => {
  assert.deepEqual(
    timeTicks(0, 90e9, 3).map(({ text }) => text),
    ['0 min', '0.5 min', '1 min', '1.5 min']
  );
  assert.deepEqual(
    timeTicks(0, 400, 4).map(({ text }) => text),
    ['0 us', '0.1 us', '0.2 us', '0.3 us', '0.4 us']
  );
});

const MIB = 2 ** 20;
const GROWTH = {
  steps: [0, 1, 2],
  events: [10, 20, 30],
  allocated: [9 * MIB, 12 * MIB, 15 * MIB],
  words: '',
  holders: [
    { name: '`preds`', category: 10, slope: 2 * MIB, held: [2, 4, 6].map(n => n * MIB), number: 9 },
    { name: '`losses`', category: 10, slope: MIB, held: [1, 2, 3].map(n => n * MIB), number: 9 },
    { name: '`total`', category: 5, slope: MIB, held: [0, 0, 1].map(n => n * MIB), number: null }
  ]
};

test('a step is what its holders keep, and by how much each has grown', () => {
  assert.deepEqual(
    [0, 1, 2].map(step => keptAt(GROWTH, step)),
    [3 * MIB, 6 * MIB, 10 * MIB]
  );
  assert.equal(
    stepInWords(GROWTH, 1),
    'after step 1 · preds 4.0 MiB, +2.0 MiB · losses 2.0 MiB, +1.0 MiB · total 0 B, 0 B · ' +
      '12.0 MiB allocated'
  );
});

test('a moment belongs to the step that ends at it or behind it', () => {
  assert.deepEqual(
    [0, 10, 11, 30, 99].map(event => stepOf(GROWTH, event)),
    [0, 0, 1, 2, 2]
  );
});

test('a long loop has few numbers, and holders of one colour have shades', () => {
  assert.equal(numbered(60).filter(Boolean).length, 8);
  assert.deepEqual(numbered(3), [true, true, true]);
  const [first, second, other] = shadesOf(GROWTH.holders);
  assert.ok(first > second);
  assert.equal(other, first);
});

test('a line that adds to two variables says both', () => {
  const said = 'preds grows by 2.0 MiB a step; losses grows by 1.0 MiB a step';
  assert.deepEqual([...growingLines(GROWTH)], [[9, said]]);
  assert.equal(growingLines(null).size, 0);
});

test('a cache of four times the allocated bytes is a line, and nothing allocated hides nothing', () => {
  assert.equal(cacheHides(MIB, 4 * MIB), true);
  assert.equal(cacheHides(MIB, 4 * MIB - 1), false);
  assert.equal(cacheHides(0, 4 * MIB), false);
});
