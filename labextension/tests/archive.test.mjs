// A recording's zip archive as the page reads it: what nbmem wrote, and what strangers may have.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { crc32, deflateRawSync } from 'node:zlib';

import { CATEGORIES } from '../lib/categories.js';
import { VERSION } from '../lib/explorer/data.js';
import { cardsIn } from '../lib/page/file.js';

const DATA = reserved => ({
  version: VERSION,
  total: 1000,
  categories: CATEGORIES,
  peak: { event: 1, allocated: 5, reserved, process: null },
  moments: { event: [0, 1], t: [0, 1], held: [[0, [5, 1]]] }
});

/** An archive of texts; `change` may lie about an entry. */
function zip(texts, change = () => ({})) {
  const parts = [];
  const directory = [];
  let at = 0;
  for (const [name, text] of Object.entries(texts)) {
    const raw = Buffer.from(text);
    const packed = deflateRawSync(raw);
    const told = { method: 8, size: packed.length, at, crc: crc32(raw), ...change(name) };
    const local = Buffer.alloc(30);
    local.writeUInt32LE(0x04034b50, 0);
    local.writeUInt16LE(name.length, 26);
    local.writeUInt16LE(4, 28); // an extra field, as Python's zipfile writes it
    const entry = Buffer.alloc(46);
    entry.writeUInt32LE(0x02014b50, 0);
    entry.writeUInt16LE(told.method, 10);
    entry.writeUInt32LE(told.crc, 16);
    entry.writeUInt32LE(told.size, 20);
    entry.writeUInt16LE(name.length, 28);
    entry.writeUInt32LE(told.at, 42);
    parts.push(local, Buffer.from(name), Buffer.alloc(4), packed);
    directory.push(entry, Buffer.from(name));
    at += 34 + name.length + packed.length;
  }
  const end = Buffer.alloc(22);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt16LE(directory.length / 2, 10);
  end.writeUInt32LE(at, 16);
  return new Uint8Array(Buffer.concat([...parts, ...directory, end]));
}

const RECORDING = {
  'session.json': '{}',
  'explorer/3.json': JSON.stringify(DATA(20)),
  '0/events/addr.npy': 'x',
  'explorer/0.json': JSON.stringify(DATA(10))
};

test('every card of a recording is read, the fullest first', async () => {
  const cards = await cardsIn(zip(RECORDING), 'run.nbmem');
  assert.deepEqual(
    cards.map(([card, data]) => [card, data.peak.reserved, data.moments.held[0]]),
    [
      [3, 20, [5, 6]],
      [0, 10, [5, 6]]
    ]
  );
});

const only = (name, changes) => one => (one === name ? changes : {});
const packedZeros = JSON.stringify({ version: VERSION, x: '0'.repeat(70 * 2 ** 20) });
for (const [what, bytes, why] of [
  ['of an older nbmem', zip({ 'session.json': '{}' }), /it was saved without what this page draws/],
  ['of something else', zip({ 'a.txt': 'x' }), /no recording of nbmem/],
  ['that is cut off', zip(RECORDING).subarray(0, -30), /the archive has no end/],
  ['of nothing but its name', new TextEncoder().encode('PK'), /the archive has no end/],
  ['with a damaged byte', zip(RECORDING, only('explorer/0.json', { crc: 1 })), /it is damaged/],
  [
    'with an entry beyond its end',
    zip(RECORDING, only('explorer/0.json', { at: 1e9 })),
    /one of its entries is broken/
  ],
  [
    'with an entry that is too long',
    zip(RECORDING, only('explorer/0.json', { size: 1e9 })),
    /not as long as it says/
  ],
  [
    'packed in another way',
    zip(RECORDING, only('explorer/0.json', { method: 12 })),
    /one of its entries is broken/
  ],
  [
    'that unpacks without end',
    zip({ 'session.json': '{}', 'explorer/0.json': packedZeros }),
    /it unpacks to more than/
  ],
  [
    'of a newer nbmem',
    zip({ 'session.json': '{}', 'explorer/0.json': JSON.stringify({ version: VERSION + 1 }) }),
    /cannot be read \(This report is of version/
  ],
  [
    'without moments',
    zip({ 'session.json': '{}', 'explorer/0.json': JSON.stringify({ version: VERSION }) }),
    /cannot be read/
  ],
  [
    'that is no JSON',
    zip({ 'session.json': '{}', 'explorer/0.json': '[' }),
    /cannot be read \(SyntaxError/
  ]
]) {
  test(`an archive ${what} is refused`, async () => {
    await assert.rejects(cardsIn(bytes, 'x.nbmem'), why);
  });
}
