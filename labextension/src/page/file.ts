/** A file that a person drops, told by its first bytes: its cards, ready to be drawn. */

import type { IData } from '../explorer/data.js';
import { recordedCards } from './archive.js';
import { check } from './checks.js';
import { drawn } from './drawn.js';
import { inflated } from './inflated.js';
import { unpickled } from './pickle.js';
import { FileError, Patience } from './refused.js';
import { snapshotOf } from './snapshot.js';

/** Bytes of a file that is read here, packed and unpacked. */
const MOST_BYTES = 512 * 2 ** 20;
/** What packed bytes may unpack to: see nbmem/core/files/limits.py. */
const [ALWAYS, RATIO] = [16 * 2 ** 20, 200];

/** A card's CUDA ordinal, and what is drawn of it. */
export type Card = readonly [number, IData];

/** Its cards, the fullest first. Throws a FileError for whatever it cannot be. */
export async function cardsIn(bytes: Uint8Array, name: string): Promise<Card[]> {
  if (bytes.length > MOST_BYTES) {
    throw new FileError('it is larger than 512 MiB: open it with nbmem report');
  }
  const cards = starts(bytes, 'PK')
    ? await recordedCards(bytes)
    : cardsOfSnapshot(await plain(bytes), name);
  return [...cards].sort(([, a], [, b]) => b.peak.reserved - a.peak.reserved);
}

async function plain(bytes: Uint8Array): Promise<Uint8Array> {
  if (starts(bytes, '\xfd7zXZ')) {
    throw new FileError('it is packed with xz, which no browser unpacks: unpack it first (xz -d)');
  }
  const most = Math.min(MOST_BYTES, ALWAYS + RATIO * bytes.length);
  return starts(bytes, '\x1f\x8b') ? inflated(bytes, 'gzip', most) : bytes;
}

function cardsOfSnapshot(bytes: Uint8Array, name: string): Card[] {
  if (bytes[0] !== 0x80) {
    throw new FileError(
      'it is neither a recording of nbmem (.nbmem) nor a snapshot that ' +
        'torch.cuda.memory._dump_snapshot() wrote'
    );
  }
  const { cards, stacks } = snapshotOf(unpickled(bytes));
  if (cards.length === 0) {
    throw new FileError('it is a snapshot without any memory in it');
  }
  cards.forEach(check);
  const patience = new Patience();
  return cards.map(card => [card.index, drawn(card, stacks, name, patience)] as const);
}

function starts(bytes: Uint8Array, text: string): boolean {
  return [...text].every((letter, i) => bytes[i] === letter.charCodeAt(0));
}
