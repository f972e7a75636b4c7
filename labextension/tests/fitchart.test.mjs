// The chart of a fit, without a page: what is said of a value, and what a saved output may hold.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { FIT_VERSION, bytesAt, fitOf, verdictAt } from '../lib/explorer/fitchart.js';

const GIB = 2 ** 30;
const FIT = {
  version: FIT_VERSION,
  card: 'T4',
  safe: 100,
  best: 120,
  limit: 121,
  runs: [
    { value: 64, fits: true, process: 4 * GIB },
    { value: 110, fits: false, process: 16 * GIB },
    { value: 120, fits: true, process: 14 * GIB }
  ],
  total: {},
  chart: { image: 'data:image/svg+xml;base64,AAAA' }
};

test('a value that ran is told by its run, any other by the band', () => {
  assert.equal(verdictAt(FIT, 64), 'fits: the process takes 4.00 GiB');
  assert.equal(verdictAt(FIT, 110), 'does not fit: it would take 16.00 GiB');
  assert.equal(verdictAt(FIT, 120), 'fits by luck: the process takes 14.00 GiB');
  assert.match(verdictAt(FIT, 99), /^fits: every value/);
  assert.match(verdictAt(FIT, 101), /^by luck/);
  assert.equal(verdictAt(FIT, 121), 'does not fit on T4');
  assert.equal(verdictAt({ ...FIT, limit: null }, 500), 'was not tried');
  assert.equal(verdictAt({ ...FIT, safe: null, best: null, limit: null }, 3), 'does not fit on T4');
});

test('a line that begins below 0 has no negative bytes', () => {
  assert.equal(bytesAt({ fixed: -10, each: 2, square: 0 }, 3), 0);
  assert.equal(bytesAt({ fixed: 1, each: 2, square: 3 }, 10), 321);
});

test('what is no chart of this version, or has another picture, is refused', () => {
  assert.equal(fitOf(FIT), FIT);
  const others = [
    null,
    {},
    { ...FIT, version: 0 },
    { ...FIT, runs: null },
    { ...FIT, chart: { image: 'https://example.org/x.svg' } },
    { ...FIT, chart: { image: 'javascript:alert(1)' } }
  ];
  for (const output of others) {
    assert.throws(() => fitOf(output), /same nbmem/);
  }
});
