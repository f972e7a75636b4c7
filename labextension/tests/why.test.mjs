// One sentence for each way of having nothing to show.

import assert from 'node:assert/strict';
import test from 'node:test';

import { afterPush, emptyState } from '../lib/state.js';
import { whyNothing } from '../lib/why.js';
import { golden } from './golden.mjs';

const trans = { __: (text, ...values) => text.replace(/%(\d)/g, (_, i) => String(values[i - 1])) };
const LINKS = [
  { kind: 'no-kernel' },
  { kind: 'starting' },
  { kind: 'restarting' },
  { kind: 'dead' },
  { kind: 'asking', busy: true },
  { kind: 'asking', busy: false },
  { kind: 'other-language', language: 'R' },
  { kind: 'not-loaded' },
  { kind: 'not-installed' },
  { kind: 'failed', error: 'ValueError: x' },
  { kind: 'loading' },
  { kind: 'too-old' },
  { kind: 'other-version', version: 7 },
  { kind: 'live' }
];

test('a kernel whose ranks write has something to show, whatever it holds itself', () => {
  const state = { ...emptyState({ kind: 'live' }), cell: golden('cell_begun').cell };
  assert.notEqual(whyNothing(state, trans), null);
  assert.equal(whyNothing({ ...state, ranks: golden('ranks_now') }, trans), null);
});

test('each has a sentence of its own', () => {
  const sentences = LINKS.map(link => whyNothing(emptyState(link), trans).sentence);
  sentences.push(whyNothing(null, trans).sentence);
  assert.equal(new Set(sentences).size, sentences.length);
  assert.ok(sentences.every(sentence => !sentence.includes('%1')));
});

test('where nbmem is not loaded there is a button that loads it', () => {
  const offers = LINKS.map(link => [link.kind, whyNothing(emptyState(link), trans).offer]);
  assert.deepEqual(
    offers.filter(([, offer]) => offer === 'load').map(([kind]) => kind),
    ['not-loaded', 'not-installed', 'failed']
  );
});

test('without a GPU there is the menu of virtual cards', () => {
  const known = { ...emptyState({ kind: 'live' }), complete: true };
  assert.equal(whyNothing(known, trans).offer, null);
  const choices = [{ key: 'L4', name: 'NVIDIA L4', total: 1 }];
  assert.equal(whyNothing({ ...known, choices }, trans).offer, 'card');
});

test('with a reading there is something to see', () => {
  const state = afterPush(emptyState({ kind: 'starting' }), golden('sample'));
  assert.equal(whyNothing(state, trans), null);
});

test('with the host alone there is something to see, too', () => {
  const [, sample] = golden('state').samples;
  const state = afterPush(emptyState({ kind: 'starting' }), { ...golden('sample'), ...sample });
  assert.equal(state.samples[0].cards.length, 0);
  assert.equal(whyNothing(state, trans), null);
});
