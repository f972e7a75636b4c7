// What Python writes is what the guards let pass, and nothing else.

import assert from 'node:assert/strict';
import test from 'node:test';

import { readPush, readReply } from '../lib/messages.js';
import { golden, names } from './golden.mjs';

const PUSHES = [
  'sample',
  'cell_begun',
  'cell_ended',
  'last_report',
  'processes',
  'note',
  'unloaded'
];
const REPLIES = ['state', 'done', 'refused'];

for (const name of PUSHES) {
  test(`${name} is a push and no reply`, () => {
    assert.deepEqual(readPush(golden(name)), { ok: true, message: golden(name) });
    assert.equal(readReply(golden(name)).ok, false);
  });
}

for (const name of REPLIES) {
  test(`${name} is a reply and no push`, () => {
    assert.deepEqual(readReply(golden(name)), { ok: true, message: golden(name) });
    assert.equal(readPush(golden(name)).ok, false);
  });
}

test('every message that Python declares has its golden one', () => {
  for (const name of [...PUSHES, ...REPLIES]) {
    assert.ok(names.includes(name), name);
  }
});

for (const [why, data] of golden('hostile')) {
  test(`refused as ${why}: ${JSON.stringify(data).slice(0, 80)}`, () => {
    assert.equal(readPush(data).ok, false);
    assert.equal(readPush(data).why, why);
    assert.equal(readReply(data).ok, false);
  });
}

test('a message that lacks any one of its fields is refused', () => {
  for (const name of PUSHES) {
    for (const field of Object.keys(golden(name))) {
      const rest = golden(name);
      delete rest[field];
      assert.equal(readPush(rest).ok, false, `${name} without ${field}`);
    }
  }
});
