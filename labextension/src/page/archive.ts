/** A recording of nbmem's, a zip archive: what it holds for this page, and nothing else of it. */

import { DataError, opened, type IData } from '../explorer/data.js';
import { inflated } from './inflated.js';
import { FileError } from './refused.js';

const END = 0x06054b50;
const ENTRY = 0x02014b50;
const LOCAL = 0x04034b50;
/** Bytes of the archive's end, with a comment of any length. */
const TAIL = 22 + 0xffff;
const MOST_ENTRIES = 10_000;
/** Bytes of one card's data, unpacked. */
const MOST_BYTES = 64 * 2 ** 20;
const [STORED, DEFLATED] = [0, 8];

/** What nbmem.api.render.save writes beside the recording: one entry for each card. */
const CARD = /^explorer\/(\d{1,2})\.json$/;

interface IEntry {
  packing: number;
  sum: number;
  size: number;
  at: number;
}

/** The cards of a recording, by their CUDA ordinals. Throws a FileError. */
export async function recordedCards(bytes: Uint8Array): Promise<Map<number, IData>> {
  const entries = directory(bytes);
  if (!entries.has('session.json')) {
    throw new FileError('it is a zip archive, but no recording of nbmem');
  }
  const cards = [...entries]
    .map(([name, entry]) => ({ card: CARD.exec(name)?.[1], entry }))
    .filter(({ card }) => card !== undefined)
    .map(({ card, entry }) => [Number(card), entry] as const);
  if (cards.length === 0) {
    throw new FileError(
      'it was saved without what this page draws, which only nbmem itself can work out: ' +
        '`nbmem report FILE` shows it, `nbmem export html FILE report.html` makes a page of it'
    );
  }
  const found = new Map<number, IData>();
  for (const [card, entry] of cards) {
    found.set(card, await dataOf(bytes, entry));
  }
  return found;
}

async function dataOf(bytes: Uint8Array, entry: IEntry): Promise<IData> {
  const packed = content(bytes, entry);
  try {
    const text =
      entry.packing === STORED ? packed : await inflated(packed, 'deflate-raw', MOST_BYTES);
    if (crc32(text) !== entry.sum) {
      throw new FileError('it is damaged: what it holds for this page is not what was written');
    }
    return opened(JSON.parse(new TextDecoder().decode(text)));
  } catch (error) {
    if (error instanceof FileError) {
      throw error;
    }
    const why = error instanceof DataError ? error.message : String(error).slice(0, 200);
    throw new FileError(`what it holds for this page cannot be read (${why})`);
  }
}

function directory(bytes: Uint8Array): Map<string, IEntry> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let end = bytes.length - 22;
  while (end >= 0 && end > bytes.length - TAIL && view.getUint32(end, true) !== END) {
    end--;
  }
  if (end < 0 || view.getUint32(end, true) !== END) {
    throw new FileError('it is truncated: the archive has no end');
  }
  const count = view.getUint16(end + 10, true);
  let at = view.getUint32(end + 16, true);
  if (count > MOST_ENTRIES) {
    throw new FileError(`it has ${count.toLocaleString('en-US')} entries`);
  }
  const entries = new Map<string, IEntry>();
  const decoder = new TextDecoder();
  for (let i = 0; i < count; i++) {
    if (at + 46 > end || view.getUint32(at, true) !== ENTRY) {
      throw new FileError('its directory is broken');
    }
    const [name, extra, comment] = [28, 30, 32].map(offset => view.getUint16(at + offset, true));
    entries.set(decoder.decode(bytes.subarray(at + 46, at + 46 + name)), {
      packing: view.getUint16(at + 10, true),
      sum: view.getUint32(at + 16, true),
      size: view.getUint32(at + 20, true),
      at: view.getUint32(at + 42, true)
    });
    at += 46 + name + extra + comment;
  }
  return entries;
}

function content(bytes: Uint8Array, { packing, size, at }: IEntry): Uint8Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (
    (packing !== STORED && packing !== DEFLATED) ||
    at + 30 > bytes.length ||
    view.getUint32(at, true) !== LOCAL
  ) {
    throw new FileError('one of its entries is broken');
  }
  const begin = at + 30 + view.getUint16(at + 26, true) + view.getUint16(at + 28, true);
  if (begin + size > bytes.length || (packing === STORED && size > MOST_BYTES)) {
    throw new FileError('one of its entries is not as long as it says');
  }
  return bytes.subarray(begin, begin + size);
}

/** The checksum of zip archives: https://www.w3.org/TR/png-3/#D-CRCAppendix has its polynomial. */
function crc32(bytes: Uint8Array): number {
  let sum = 0xffffffff;
  for (const byte of bytes) {
    sum = (sum >>> 8) ^ CRC[(sum ^ byte) & 255];
  }
  return (sum ^ 0xffffffff) >>> 0;
}

const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  let sum = byte;
  for (let bit = 0; bit < 8; bit++) {
    sum = sum & 1 ? (sum >>> 1) ^ 0xedb88320 : sum >>> 1;
  }
  return sum;
});
