// The page onto which a file is dropped, without a browser: what it reads, and what it refuses.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';

import { eventIn, momentAt, withEvent } from '../lib/page/address.js';
import { cardsIn } from '../lib/page/file.js';
import { unpickled } from '../lib/page/pickle.js';
import { rounded } from '../lib/page/start.js';
import { tiledAt } from '../lib/explorer/poolmap.js';
import { opcodes, pickled, text, uint32 } from './pickles.mjs';

const MIB = 2 ** 20;
const SEGMENT = 2 * MIB;
const FRAMES = [
  { filename: '/usr/lib/python3.12/site-packages/torch/nn/linear.py', line: 9, name: 'forward' },
  { filename: '/data/train.py', line: 3, name: 'step' },
  { filename: '/data/train.py', line: 8, name: '<module>' }
];
const event = (action, addr, size, time_us, frames = []) => ({
  action,
  addr,
  size,
  stream: 0,
  time_us,
  frames
});

/** One small segment: a block from before, one that another stream holds, and one that lives on. */
const SNAPSHOT = () => ({
  segments: [
    {
      device: 0,
      address: 4096,
      total_size: SEGMENT,
      stream: 0,
      segment_type: 'small',
      segment_pool_id: [0, 0],
      is_expandable: false,
      blocks: [
        { address: 4096, size: 1024, requested_size: 0, state: 'inactive', frames: [] },
        {
          address: 5120,
          size: 512,
          requested_size: 500,
          state: 'active_allocated',
          frames: FRAMES
        },
        { address: 5632, size: SEGMENT - 1536, requested_size: 0, state: 'inactive', frames: [] }
      ]
    }
  ],
  device_traces: [
    [
      event('alloc', 5120, 500, 1_000_000, FRAMES),
      event('free_requested', 4096, 700, 1_000_002),
      event('alloc', 5632, 2000, 1_000_004),
      event('free_completed', 4096, 700, 1_000_006),
      event('a kind of tomorrow', 1, 1, 1_000_007),
      event('free_requested', 5632, 2000, 1_000_008),
      event('free_completed', 5632, 2000, 1_000_009)
    ]
  ],
  allocator_settings: { max_split_size: -1, expandable_segments: false }
});
const snapshot = value => cardsIn(pickled(value), 'x.pickle');

test('a snapshot has the bytes of every moment, pending ones and those from before included', async () => {
  const [[card, data]] = await snapshot(SNAPSHOT());
  assert.equal(card, 0);
  assert.deepEqual(data.moments.event, [0, 1, 2, 3, 4, 6]);
  const held = key =>
    data.moments.held[data.categories.findIndex(category => category.key === key)];
  assert.deepEqual(held('unknown'), [700, 1200, 500, 2500, 2500, 500]);
  assert.deepEqual(held('rounding'), [324, 336, 12, 60, 60, 12]);
  assert.deepEqual(held('pending'), [0, 0, 1024, 1024, 0, 0]);
  assert.deepEqual(held('cached_releasable'), [0, 0, 0, 0, 0, 0]);
  assert.deepEqual(
    held('cached_stuck'),
    [1024, 1536, 1536, 3584, 2560, 512].map(used => SEGMENT - used)
  );
  assert.equal(data.total, SEGMENT);
  assert.deepEqual(data.peak, { event: 3, allocated: 2560, reserved: SEGMENT, process: null });
  assert.deepEqual(data.moments.t, [0, 0, 2000, 4000, 6000, 9000]);
  assert.ok(data.notes.some(note => note.startsWith('1 entries of a kind')));
});

test('a snapshot tells whose line made what, and how the pool lay', async () => {
  const [[, data]] = await snapshot(SNAPSHOT());
  const { lives, texts } = data;
  assert.deepEqual(lives.born, [-1, 0, 2]);
  assert.deepEqual(lives.freed, [1, 6, 4]); // 6: it lives on
  assert.deepEqual(
    lives.line.map(line => texts[line] ?? ''),
    ['', 'train.py:3 in step', '']
  );
  assert.deepEqual(
    lives.stack[1].map(line => texts[line]),
    ['train.py:3 in step', 'train.py:8']
  );
  const [[segment, pieces]] = tiledAt(data.pools, 2);
  assert.equal(segment.size, SEGMENT);
  assert.deepEqual(
    pieces.map(({ size, state }) => [size, state]),
    [
      [1024, 'pending'],
      [512, 'used'],
      [SEGMENT - 1536, 'stuck']
    ]
  );
});

test('what is packed is unpacked, up to a limit', async () => {
  const bytes = pickled(SNAPSHOT());
  assert.equal((await cardsIn(new Uint8Array(gzipSync(bytes)), 'x')).length, 1);
  const bomb = new Uint8Array(gzipSync(new Uint8Array(64 * MIB)));
  await assert.rejects(cardsIn(bomb, 'x'), /it unpacks to more than/);
  await assert.rejects(cardsIn(Uint8Array.from([0xfd, ...text('7zXZ')]), 'x'), /unpack it first/);
});

test('a pickle is read as Python writes it', () => {
  const read = unpickled(
    opcodes(
      [0x7d, 0x94, 0x28],
      [
        ...[0x8c, 1, ...text('a'), 0x94],
        0x5d,
        0x28,
        0x4b,
        7,
        0x4d,
        0,
        1,
        0x4a,
        ...uint32(-5),
        0x65
      ],
      [...[0x8c, 1, ...text('b')], 0x47, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0],
      [...[0x8c, 1, ...text('c')], 0x8a, 6, 0, 0, 0, 0, 0, 1],
      [...[0x8c, 1, ...text('d')], 0x8a, 9, 255, 255, 255, 255, 255, 255, 255, 255, 0],
      [...[0x8c, 1, ...text('e')], 0x4b, 1, 0x4b, 2, 0x86],
      [...[0x8c, 9, ...text('__proto__')], 0x68, 1],
      0x75
    )
  );
  assert.deepEqual(
    { ...read },
    JSON.parse(
      '{"a":[7,256,-5],"b":1.5,"c":1099511627776,"d":18446744073709552000,"e":[1,2],"__proto__":"a"}'
    )
  );
  assert.equal('toString' in read, false);
});

for (const [what, bytes, why] of [
  ['code', opcodes(0x63, text('os\nsystem\n')), /it wants os.system, .*it could run code/],
  [
    'newer code',
    opcodes([0x8c, 2, ...text('os')], [0x8c, 6, ...text('system')], 0x93),
    /it wants os.system/
  ],
  ['a call', opcodes(0x4e, 0x29, 0x52), /the opcode 0x29 at byte 3/],
  ['a call of what is there', opcodes(0x4e, 0x4e, 0x52), /the opcode 0x52/],
  ['an object', opcodes(0x4e, 0x4e, 0x62), /the opcode 0x62/],
  ['a persistent id', opcodes(0x4e, 0x51), /the opcode 0x51/],
  ['bytes', opcodes(0x43, 1, 65), /the opcode 0x43/],
  ['an old protocol', Uint8Array.from([0x28, 0x2e]), /neither a recording/],
  ['a future protocol', Uint8Array.from([0x80, 6, 0x4e, 0x2e]), /beyond 5/],
  ['no end', Uint8Array.from([0x80, 4, 0x5d]), /truncated/],
  ['half a number', Uint8Array.from([0x80, 4, 0x4a, 1]), /truncated/],
  ['a text of 4 GiB', opcodes(0x58, uint32(0xffffffff)), /claims to have 4,294,967,295 bytes/],
  ['a huge integer', opcodes(0x8a, 10, new Array(10).fill(1)), /more than 72 bits/],
  ['a hole in the memo', opcodes(0x4e, 0x72, uint32(1e9)), /its memo has holes/],
  ['a reference to nothing', opcodes(0x68, 3), /refers to what is not there/],
  ['a mark that is missing', opcodes(0x5d, 0x65), /a mark is missing/],
  ['a list as a key', opcodes(0x7d, 0x5d, 0x4e, 0x73), /neither a text nor a number/],
  ['an empty stack', opcodes(), /its stack is empty/],
  ['another thing', pickled([1]), /no snapshot of torch's memory/],
  ['nothing in it', pickled({ segments: [], device_traces: [[]] }), /without any memory in it/]
]) {
  test(`a pickle with ${what} is refused`, async () => {
    await assert.rejects(cardsIn(bytes, 'x.pickle'), why);
  });
}

test('a million lists in each other are refused, and a hundred thousand are read', async () => {
  const nested = count => opcodes(new Array(count).fill(0x5d), new Array(count - 1).fill(0x61));
  assert.throws(() => unpickled(nested(1_000_000)), /more lists and dicts/);
  assert.ok(Array.isArray(unpickled(nested(100_000))));
});

test('a list that is its own element many times over is read once, or refused', async () => {
  // Each list holds the one before ten times: as a tree it would have 10^40 leaves.
  const levels = [];
  for (let level = 0; level < 40; level++) {
    const again = level === 0 ? [0x4e] : new Array(10).fill([0x68, level - 1]).flat();
    levels.push(0x5d, 0x94, 0x28, ...again, 0x65);
  }
  const bomb = opcodes(levels);
  assert.ok(unpickled(bomb));
  await assert.rejects(cardsIn(bomb, 'x'), /no snapshot/);
});

const changed = change => {
  const value = SNAPSHOT();
  change(value, value.segments[0].blocks);
  return value;
};
for (const [what, change, why] of [
  ['blocks that overlap', (_, [, block]) => (block.address = 4608), /overlap/],
  ['a block outside', (_, [block]) => (block.address = 0), /lie in no segment/],
  ['a block of less than was asked for', (_, [, block]) => (block.requested_size = 513), /smaller/],
  ['an address that is a text', ({ segments: [one] }) => (one.address = 'x'), /no whole number/],
  ['a half byte', (_, [block]) => (block.size = 2 ** 60), /no whole number/],
  ['a state that nobody knows', (_, [block]) => (block.state = 'asleep'), /a state that torch/],
  [
    'more in use than reserved',
    ({ device_traces: [trace] }) => (trace[3].size = 2 ** 40),
    /in use before/
  ],
  ['65 cards', value => (value.device_traces = new Array(65).fill([])), /65 cards/],
  ['a frame that is none', ({ device_traces: [[one]] }) => (one.frames = [1]), /frames is none/]
]) {
  test(`a snapshot with ${what} is refused`, async () => {
    await assert.rejects(snapshot(changed(change)), why);
  });
}

test('events that contradict each other are mended and counted', async () => {
  const [[, data]] = await snapshot(
    changed(({ device_traces: [trace] }) => {
      trace.push(event('free_completed', 999, 5, 1_000_010));
      trace.push(event('alloc', 5120, 512, 1_000_011));
    })
  );
  assert.ok(data.notes.includes('1 frees had no allocation.'));
  assert.ok(data.notes.includes('1 allocations were made where another one still lived.'));
  data.moments.event.forEach((_, row) => {
    assert.equal(
      data.moments.held.reduce((sum, column) => sum + column[row], 0),
      data.total
    );
  });
});

test('a request is rounded as nbmem.allocator.rounding rounds it, with size classes and without', () => {
  const divisions = [2, 4, 8, 1, 0, 16, ...new Array(10).fill(4)];
  for (const [size, block] of [
    [1, 512],
    [512, 512],
    [513, 1024],
    [100_000, 131_072],
    [1_048_577, 1_572_864],
    [2_500_000, 2_621_440],
    [5_000_000, 5_242_880],
    [9_000_000, 9_000_448],
    [17_000_000, 17_000_448],
    [2 ** 25, 2 ** 25],
    [40_000_000, 41_943_040],
    [2 ** 36 + 1, 85_899_345_920]
  ]) {
    assert.equal(rounded(size, divisions), block);
  }
  assert.equal(rounded(100_000, new Array(16).fill(0)), 100_352);
});

test('an address names the chosen event of each report, and no section is taken for one', () => {
  assert.equal(withEvent('', 0, 360), '#event=360');
  assert.equal(withEvent('#event=360', 1, 7), '#event=360&event2=7');
  assert.equal(withEvent('#event=360&event2=7', 0, 12), '#event=12&event2=7');
  assert.equal(withEvent('#a-small-cnn', 0, 5), '#event=5');
  assert.deepEqual(
    [0, 1].map(report => eventIn('#event=12&event2=7', report)),
    [12, 7]
  );
  assert.equal(eventIn('#event=12', 1), null);
  assert.equal(eventIn('#a-small-cnn', 0), null);
  assert.equal(eventIn('#event=-1', 0), null);
  assert.deepEqual(
    [0, 4, 5, 99].map(event => momentAt([0, 5, 9], event)),
    [0, 0, 5, 9]
  );
});
