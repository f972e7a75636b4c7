// How messages change what is known of a kernel.

import assert from 'node:assert/strict';
import test from 'node:test';

import { afterPush, afterState, emptyState, failureOf, newest, WINDOW_MS } from '../lib/state.js';
import { golden } from './golden.mjs';

const START = emptyState({ kind: 'starting' });
const sampleAt = t_ms => ({ ...golden('sample'), t_ms });
const pushed = (...messages) => messages.reduce(afterPush, START);

test('the first push makes a kernel live, without a handshake', () => {
  const state = pushed(golden('sample'));
  assert.equal(state.link.kind, 'live');
  assert.equal(state.cell.number, 3);
  assert.equal(newest(state).cards[0].allocated, 3221225472);
  assert.equal(START.samples.length, 0, 'a state is replaced, never changed');
});

test('the line keeps a minute, and the reading that held when it began', () => {
  const t = 1.7e12;
  const state = pushed(...[0, 5000, 61_000, 66_000].map(ms => sampleAt(t + ms)));
  assert.deepEqual(
    state.samples.map(sample => sample.t_ms - t),
    [5000, 61_000, 66_000]
  );
  assert.equal(WINDOW_MS, 60_000);
});

test('a flood of samples is bounded', () => {
  const flood = Array.from({ length: 3000 }, (_, i) => sampleAt(1.7e12 + i));
  assert.ok(pushed(...flood).samples.length <= 1200);
});

test('a clock that was set back starts the line anew', () => {
  const state = pushed(sampleAt(1.7e12), sampleAt(1.6e12));
  assert.deepEqual(
    state.samples.map(sample => sample.t_ms),
    [1.6e12]
  );
});

test('a cell that ends is kept, and none runs', () => {
  const state = pushed(golden('cell_begun'), golden('cell_ended'));
  assert.equal(state.cell, null);
  assert.equal(state.cells.length, 1);
  assert.ok(
    Array.from({ length: 500 }, () => golden('cell_ended')).reduce(afterPush, START).cells.length <=
      200
  );
});

test('an out-of-memory error stands above until another cell has run', () => {
  const error = 'Ran out of memory: 1.65 GiB asked for, 0.16 GiB free';
  const ended = golden('cell_ended');
  const report = { ...golden('last_report'), cell: ended.cell, verdict: `${error}.`, error };
  const failed = pushed(report, ended);
  assert.equal(failureOf(failed), error);
  const later = { ...ended, cell: { ...ended.cell, begun_ms: ended.cell.begun_ms + 9 } };
  assert.equal(failureOf(afterPush(failed, later)), null);
  assert.equal(failureOf(afterPush(failed, golden('cell_begun'))), null);
  const other = { ...report, verdict: 'Peak 1.00 GiB', error: 'ValueError: no' };
  assert.equal(failureOf(pushed(other, ended)), null, 'JupyterLab shows what Python raised');
});

test('the whole state replaces what was known, except what was pushed after it', () => {
  const told = golden('state');
  const later = { ...golden('cell_ended'), t_ms: told.t_ms + 1 };
  const before = { ...golden('cell_ended'), t_ms: told.t_ms - 1 };
  const state = afterState(pushed(before, later, sampleAt(told.t_ms + 5)), told);
  assert.equal(state.cells.length, told.cells.length + 1);
  assert.equal(newest(state).t_ms, told.t_ms + 5);
  assert.equal(state.complete, true);
  assert.deepEqual(state.cards, told.cards);
});

test('what a new report finds is not muted, and what was muted stays so', () => {
  const { findings } = golden('last_report');
  const muted = ['fragmentation', ...findings.map(finding => finding.rule)];
  const state = afterState(START, { ...golden('state'), muted });
  assert.deepEqual(afterPush(state, golden('last_report')).muted, ['fragmentation']);
});

test('ranks that are told later count more than those of the state', () => {
  const told = golden('state');
  const later = { ...golden('ranks_now'), t_ms: told.t_ms + 1, size: 9 };
  assert.equal(afterState(pushed(later), told).ranks.size, 9);
  const before = { ...golden('ranks_now'), t_ms: told.t_ms - 1, size: 9 };
  assert.equal(afterState(pushed(before), told).ranks.size, told.ranks.size);
});

test('nbmem that is taken out leaves nothing behind', () => {
  const state = pushed(golden('sample'), golden('last_report'), golden('unloaded'));
  assert.deepEqual(state, emptyState({ kind: 'not-loaded' }));
});

test('the same note is said once', () => {
  assert.equal(pushed(golden('note'), golden('note')).notes.length, 1);
});
