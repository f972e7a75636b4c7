/** The status bar's line and the list of kernels, from states as the page has them. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { amountOf, kernelRows, otherProcesses } from '../lib/kernels.js';
import { afterPush, emptyState } from '../lib/state.js';
import { countsOf, scaleOf } from '../lib/ranks.js';
import { statusOf } from '../lib/status.js';
import { golden } from './golden.mjs';

const trans = {
  __: (text, ...values) => text.replace(/%(\d)/g, (_, at) => values[at - 1])
};
const MIB = 2 ** 20;

function live(...cards) {
  return afterPush(emptyState({ kind: 'starting' }), { ...golden('sample'), cards });
}

const CARD = {
  ...golden('sample').cards[0],
  name: 'Tesla T4',
  virtual: true,
  total: 16 * MIB,
  allocated: 4 * MIB,
  process: 6 * MIB,
  peak: 8 * MIB
};

test('the line says allocated of total and the peak', () => {
  assert.deepEqual(statusOf(live(CARD), trans), {
    text: 'GPU 4.0 MiB of 16.0 MiB, peak 8.0 MiB',
    title: 'Tesla T4 (virtual): 4,194,304 bytes of 16,777,216 bytes, peak 8,388,608 bytes',
    allocated: 0.25,
    peak: 0.5
  });
});

test('a peak that was only read now and then is the least that it can be', () => {
  const { text, title } = statusOf(live({ ...CARD, peak_exact: false }), trans);
  assert.equal(text, 'GPU 4.0 MiB of 16.0 MiB, peak ≥ 8.0 MiB');
  assert.match(title, /peak ≥ 8,388,608 bytes$/);
});

test('of several cards the fullest is named, and all are in the tooltip', () => {
  const other = { ...CARD, index: 1, name: null, virtual: false, allocated: 8 * MIB };
  const status = statusOf(live(CARD, other), trans);
  assert.equal(status.text, 'GPU 1 8.0 MiB of 16.0 MiB, peak 8.0 MiB');
  assert.equal(status.title.split('\n').length, 2);
  assert.match(status.title, /^GPU 1: 8,388,608 bytes/m);
});

test('what nobody knows is not shown', () => {
  const status = statusOf(live({ ...CARD, total: null }), trans);
  assert.equal(status.text, 'GPU 4.0 MiB, peak 8.0 MiB');
  assert.equal(status.allocated, null);
  assert.equal(statusOf(null, trans), null);
  assert.equal(statusOf(emptyState({ kind: 'no-kernel' }), trans), null);
  const unloaded = statusOf(emptyState({ kind: 'not-loaded' }), trans);
  assert.deepEqual(
    [unloaded.text, unloaded.title],
    ['GPU –', 'nbmem is not loaded in this kernel.']
  );
});

const session = (path, id, type = 'notebook') => ({
  path,
  type,
  kernel: { id, execution_state: 'idle' }
});

test('every kernel of the server has a row, the largest first', () => {
  const front = { ...live(CARD), processes: [] };
  const rows = kernelRows(
    [
      session('deep/a.ipynb', 'a'),
      session('b.ipynb', 'b'),
      session('c.ipynb', 'c'),
      session('d', 'd', 'console')
    ],
    [
      { kernel: 'a', state: front },
      { kernel: 'b', state: live({ ...CARD, process: 9 * MIB, allocated: MIB }) },
      { kernel: 'c', state: emptyState({ kind: 'not-loaded' }) }
    ],
    'a'
  );
  assert.deepEqual(
    rows.map(row => [row.name, row.path, row.isCurrent, row.isLoaded, row.allocated, row.process]),
    [
      ['b.ipynb', 'b.ipynb', false, true, MIB, 9 * MIB],
      ['a.ipynb', 'deep/a.ipynb', true, true, 4 * MIB, 6 * MIB],
      ['c.ipynb', 'c.ipynb', false, false, null, null],
      ['d', null, false, null, null, null]
    ]
  );
});

test('a kernel is its process, or else its tensors, and never zero for want of a figure', () => {
  const trans = { __: (text, ...values) => text.replace('%1', values[0]) };
  const told = (process, allocated) => amountOf({ process, allocated }, trans);
  assert.equal(told(5 * MIB, 2 * MIB), '5.0 MiB');
  assert.equal(told(null, 2 * MIB), '2.0 MiB in tensors');
  assert.equal(told(null, null), 'unknown');
});

test('a kernel of another page is known by its process, which is no other process then', () => {
  const processes = [
    { card: 0, pid: 7, name: 'python', notebook: 'b.ipynb', used: 2 * MIB },
    { card: 1, pid: 7, name: 'python', notebook: 'b.ipynb', used: 3 * MIB },
    { card: 0, pid: 8, name: 'Xorg', notebook: null, used: MIB },
    { card: 0, pid: 9, name: 'python', notebook: 'gone.ipynb', used: MIB }
  ];
  const known = [{ kernel: 'a', state: { ...live(CARD), processes } }];
  const rows = kernelRows([session('a.ipynb', 'a'), session('b.ipynb', 'b')], known, 'a');
  assert.equal(rows.find(row => row.id === 'b').process, 5 * MIB);
  assert.equal(rows.find(row => row.id === 'b').isLoaded, null);
  assert.deepEqual(
    otherProcesses(processes, rows).map(one => one.pid),
    [8, 9]
  );
});

const HOST = {
  total: 16 * MIB,
  process: 4 * MIB,
  peak: 8 * MIB,
  peak_exact: true,
  free: 2 * MIB,
  by_category: []
};

function onHost(host) {
  return afterPush(emptyState({ kind: 'starting' }), { ...golden('sample'), cards: [], host });
}

test('where there is no card the line says what the process has of the host', () => {
  assert.deepEqual(statusOf(onHost(HOST), trans), {
    text: 'RAM 4.0 MiB of 16.0 MiB, peak 8.0 MiB',
    title: 'This process: 4,194,304 bytes of 16,777,216 bytes, peak 8,388,608 bytes',
    allocated: 0.25,
    peak: 0.5
  });
});

test('so is the host that the kernel did not count', () => {
  const { text } = statusOf(onHost({ ...HOST, peak_exact: false }), trans);
  assert.equal(text, 'RAM 4.0 MiB of 16.0 MiB, peak ≥ 8.0 MiB');
});

test('a card that is in use comes before the host', () => {
  const both = afterPush(emptyState({ kind: 'starting' }), {
    ...golden('sample'),
    cards: [CARD],
    host: HOST
  });
  assert.match(statusOf(both, trans).text, /^GPU 4.0 MiB/);
});

test('ranks are counted by what became of them', () => {
  const ranks = golden('ranks_now');
  assert.equal(countsOf(ranks, trans), '1 of 4 run, 1 failed');
  assert.equal(scaleOf(ranks), 4 * 2 ** 30);
  const run = { ...ranks.ranks[0], state: 'silent' };
  assert.equal(countsOf({ ...ranks, ranks: [run, run] }, trans), '2 of 4 run');
});
