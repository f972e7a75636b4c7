// A card's parts, its line, and numbers as people read them.

import assert from 'node:assert/strict';
import test from 'node:test';

import { isAllowed } from '../lib/actions.js';
import {
  allocatedPart,
  drawnOf,
  linesOf,
  partsOf,
  partsOfHost,
  partsOfRank,
  seriesOf
} from '../lib/figures.js';
import {
  axisEnd,
  clipped,
  exactBytes,
  formatBytes,
  formatMs,
  percent,
  splitNames
} from '../lib/format.js';
import { areaPath, stepPath, windowOf } from '../lib/line.js';
import { golden } from './golden.mjs';

const [full, bare] = golden('sample').cards;
const bytesOf = parts => parts.map(part => [part.key, part.bytes]);

test('the parts of a card add up to the card', () => {
  const parts = partsOf(full);
  assert.equal(
    parts.reduce((sum, part) => sum + part.bytes, 0),
    full.total
  );
  assert.deepEqual(bytesOf(parts).slice(-2), [
    ['driver', full.driver],
    ['free', full.free]
  ]);
});

test('other frameworks are parts of the process, where that can be', () => {
  const named = part => part.key.startsWith('frameworks') || part.key === 'context';
  assert.deepEqual(bytesOf(partsOf(full).filter(named)), [
    ['frameworks', 100_000_000],
    ['frameworks_cached', 200_000_000],
    ['context', 200_000_000]
  ]);
  const wrong = { ...full, frameworks: [['frameworks', 'CuPy', full.process]] };
  assert.deepEqual(bytesOf(partsOf(wrong).filter(named)), [['context', 500_000_000]]);
});

test('what the driver does not say is no part', () => {
  assert.deepEqual(bytesOf(partsOf(bare)), [['cached', 2097152]]);
  const unsplit = partsOf({ ...full, process: null });
  assert.equal(unsplit.find(part => part.key === 'context').label, 'context and others');
  assert.ok(!unsplit.some(part => part.key === 'other_processes'));
});

test('categories that do not add up are not shown as if they did', () => {
  const wrong = { ...full, by_category: [['weights', 'weights', full.allocated + 1]] };
  assert.deepEqual(bytesOf(partsOf(wrong))[0], ['allocated', full.allocated]);
});

test('a ledger names what is allocated, if it adds up to it', () => {
  const ledger = [
    ['weights', 'weights', full.allocated - 512],
    ['rounding', 'rounding', 512],
    ['pending', 'pending', 7],
    ['free', 'free', 9]
  ];
  const bare = { ...full, by_category: [] };
  const parts = partsOf(bare, allocatedPart(ledger));
  assert.deepEqual(bytesOf(parts).slice(0, 2), [
    ['weights', full.allocated - 512],
    ['rounding', 512]
  ]);
  assert.equal(partsOf(bare, allocatedPart(ledger).slice(1))[0].key, 'allocated');
});

test('the stacked series add up to what was allocated at each reading', () => {
  const cards = [{ ...full, by_category: [] }, full];
  const series = seriesOf(cards);
  cards.forEach((card, i) => {
    assert.equal(
      series.reduce((sum, one) => sum + one.values[i], 0),
      card.allocated
    );
  });
});

test('a reading holds until the next', () => {
  const frame = { from: 0, to: 10, top: 100 };
  const curve = { times: [0, 5], values: [0, 50] };
  assert.equal(stepPath(curve, frame), 'M0 100H50V50H100');
  assert.equal(areaPath(curve, null, frame), 'M0 100H50V50H100V100H50V100H0Z');
  assert.equal(stepPath({ times: [], values: [] }, frame), '');
});

test('the window grows with what there is to see, to a minute', () => {
  assert.equal(windowOf([]), 1000);
  assert.equal(windowOf([0, 250]), 1000, 'a quick cell is not a sliver at the edge');
  assert.equal(windowOf([0, 3000]), 5000);
  assert.equal(windowOf([0, 11_000]), 20_000);
  assert.equal(windowOf([0, 61_000, 63_000]), 2000, 'the first held when the minute began');
});

test('what lies outside of the picture stays at its edge', () => {
  const frame = { from: 0, to: 10, top: 100 };
  assert.equal(stepPath({ times: [-5, 5], values: [-1, 500] }, frame), 'M0 100H50V0H100');
});

test('bytes are written as Python writes them', () => {
  assert.deepEqual(
    [0, 1023, 1536, 5 * 2 ** 20, 3 * 2 ** 30, null].map(count => formatBytes(count)),
    ['0 B', '1023 B', '1.5 KiB', '5.0 MiB', '3.00 GiB', 'unknown']
  );
  assert.deepEqual(
    [512, -(2 ** 20), 0].map(count => formatBytes(count, true)),
    ['+512 B', '-1.0 MiB', '0 B']
  );
  assert.equal(exactBytes(1234567), '1,234,567 bytes');
});

test('durations, shares, axes and foreign text', () => {
  assert.deepEqual([1.5, 250, 2500, 300_000].map(formatMs), [
    '1.5 ms',
    '250 ms',
    '2.5 s',
    '5.0 min'
  ]);
  assert.deepEqual([percent(1, 200), percent(1, 2), percent(0, 0)], ['0.5%', '50%', '0%']);
  assert.deepEqual([0, 2.5 * 2 ** 30, 3 * 2 ** 30, 3.1 * 2 ** 30].map(axisEnd), [
    2 ** 20,
    3 * 2 ** 30,
    3 * 2 ** 30,
    2 ** 32
  ]);
  assert.equal(clipped('a\n  b'), 'a b');
  assert.equal(clipped('x'.repeat(500)).length, 300);
});

test('a button runs what is on the list and nothing else', () => {
  const command = (name, ...words) => ({ name, arguments: words });
  assert.ok(isAllowed(command('free', 'cache')));
  assert.ok(isAllowed(command('free', 'model_2')));
  for (const hostile of [
    command('free', 'x; import os'),
    command('free', '__import__("os")'),
    command('free', 'a b'),
    command('run', 'cache'),
    command('constructor'),
    command('free', ...Array(9).fill('x'))
  ]) {
    assert.ok(!isAllowed(hostile), JSON.stringify(hostile));
  }
});

test('the parts of the host are all of it', () => {
  const [, { host }] = golden('state').samples;
  const parts = partsOfHost(host);
  assert.deepEqual(
    parts.map(part => part.key),
    ['weights', 'rest', 'other_processes', 'free']
  );
  assert.equal(
    parts.reduce((sum, part) => sum + part.bytes, 0),
    host.total
  );
});

test('what the host memory is of stands below its sums, and is no part of the bar', () => {
  const [, { host }] = golden('state').samples;
  const told = lines => lines.map(({ kind, key, bytes }) => [kind, key, bytes / 2 ** 20]);
  assert.deepEqual(told(linesOf(partsOfHost(host), host.parts)), [
    ['part', 'weights', 1024],
    ['part', 'rest', 2048],
    ['sum', 'process', 3072],
    ['of', 'files', 256],
    ['part', 'other_processes', 3072],
    ['part', 'free', 10240],
    ['of', 'cache', 5120]
  ]);
  const report = ['weights', 'gradients', 'context', 'free'].map(key => ({
    key,
    label: key,
    bytes: 1
  }));
  assert.deepEqual(
    linesOf(report, [
      ['tensors', 'of it shared', 1],
      ['shared', 'of it shared memory', 2]
    ]).map(({ kind, key }) => `${kind} ${key}`),
    'part weights,part gradients,sum tensors,of tensors,part context,sum process,of shared,part free'.split(
      ','
    )
  );
  assert.deepEqual(told(linesOf(partsOfHost({ ...host, by_category: [] }), host.parts))[1], [
    'of',
    'files',
    256
  ]);
});

test('where the host is not split, or others are not known, nothing is made up', () => {
  const [, { host }] = golden('state').samples;
  const unsplit = { ...host, by_category: host.by_category.slice(1), free: null };
  assert.deepEqual(partsOfHost(unsplit), [
    { key: 'allocated', label: 'this process', bytes: host.process }
  ]);
  const shared = { ...host, free: host.total - host.process + 1 }; // pages shared with others
  assert.ok(!partsOfHost(shared).some(part => part.key === 'other_processes'));
});

test('the line of the host stacks the process', () => {
  const [, { host }] = golden('state').samples;
  const series = seriesOf([drawnOf(host), drawnOf({ ...host, by_category: [] })]);
  assert.deepEqual(
    series.map(({ key, values }) => [key, ...values]),
    [
      ['weights', 2 ** 30, 0],
      ['rest', 2 * 2 ** 30, 0],
      ['allocated', 0, host.process]
    ]
  );
});

test('the parts of a rank are what its allocator holds', () => {
  const [runs, failed] = golden('ranks_now').ranks;
  assert.deepEqual(bytesOf(partsOfRank(runs)), [
    ['weights', 1 << 30],
    ['rest', 2 * 2 ** 30],
    ['cached', 2 ** 30]
  ]);
  assert.deepEqual(partsOfRank(failed), []);
  assert.deepEqual(bytesOf(partsOfRank({ ...runs, by_category: [] }))[0], [
    'allocated',
    3 * 2 ** 30
  ]);
});

test('names between backticks are pieces of their own, if the backticks have partners', () => {
  assert.deepEqual(splitNames('of `model` and `x`.'), [
    ['of ', false],
    ['model', true],
    [' and ', false],
    ['x', true],
    ['.', false]
  ]);
  assert.deepEqual(splitNames('cut `mod…'), [['cut `mod…', false]]);
});
