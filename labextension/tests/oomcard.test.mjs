// The card of an out-of-memory error, without a page: what is read of a saved output.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { tryLine } from '../lib/explorer/tips.js';
import { OOM_VERSION, oomOf } from '../lib/explorer/oomcard.js';

test('what an output leaves out is empty', () => {
  const oom = oomOf({ version: OOM_VERSION, title: 'Ran out of memory', remedies: 'none' });
  assert.equal(oom.title, 'Ran out of memory');
  assert.deepEqual([oom.remedies, oom.tables, oom.calls], [[], [], []]);
  assert.equal(oom.after, null);
});

for (const output of [
  null,
  {},
  { version: OOM_VERSION + 1, title: 'x' },
  { version: OOM_VERSION }
]) {
  test(`what is no card of this version is refused: ${JSON.stringify(output)}`, () => {
    assert.throws(() => oomOf(output), /same nbmem/);
  });
}

test('what tries a tip is one command, whatever a saved notebook holds', () => {
  assert.equal(tryLine('grows_each_step'), '%nbmem try grows_each_step');
  for (const hostile of ['x\nimport os', '!rm', '', 'A'.repeat(99), 3, null, undefined]) {
    assert.equal(tryLine(hostile), null);
  }
});
