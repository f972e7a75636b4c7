/**
 * Reads the pickles of torch's memory snapshots: lists, dicts, texts, numbers and pairs of numbers.
 *
 * Nothing in a pickle is run here, for no opcode that could is known: what is not data is refused.
 * The opcodes and their limits are those of nbmem/core/files/pickles.py. No recursion: what lies deep
 * in each other takes memory in proportion to the file, and no stack.
 */

import { FileError } from './refused.js';

export type Plain = string | number | boolean | null | Plain[] | IPlainDict;
/** No key of it means anything of JavaScript's: nothing of Object's is behind it. */
export interface IPlainDict {
  [key: string]: Plain;
}

/** `Object.create(null)` in its effect, and many times as fast. */
const Dict = function () {} as unknown as new () => IPlainDict;
Dict.prototype = Object.create(null) as object;

const LONGEST_TEXT = 2 ** 20;
/** Lists and dicts that any file may have, and the bytes that pay for each further one. */
const CONTAINERS_FREE = 100_000;
const BYTES_FOR_ONE = 4;
/** Places in the memo; each is one byte in the file at least. */
const MOST_MEMO = 2 ** 26;

/** Opcodes that would import something: what they name is told. */
const GLOBAL = 0x63;
const STACK_GLOBAL = 0x93;

/** Stands on the stack for the opcode `(`. */
const MARK = Symbol('mark');

/** The one object that a pickle holds. Throws a FileError. */
export function unpickled(bytes: Uint8Array): Plain {
  return new Reader(bytes).read();
}

class Reader {
  constructor(private readonly _bytes: Uint8Array) {
    this._view = new DataView(_bytes.buffer, _bytes.byteOffset, _bytes.byteLength);
    this._allowed = CONTAINERS_FREE + Math.floor(_bytes.length / BYTES_FOR_ONE);
  }

  read(): Plain {
    if (this._bytes[0] !== 0x80) {
      throw new FileError('it is no pickle of protocol 2 or newer');
    }
    for (;;) {
      const at = this._at;
      const code = this._bytes[at];
      if (code === undefined) {
        throw new FileError('it is truncated');
      }
      if (code === 0x2e) {
        return this._popped(); // .
      }
      this._at = at + 1;
      this._step(code, at);
    }
  }

  private _step(code: number, at: number): void {
    switch (code) {
      case 0x80: // the protocol
        if (this._bytes[this._need(1)] > 5) {
          throw new FileError('its pickle is of a protocol beyond 5');
        }
        return;
      case 0x95: // a frame
        this._need(8);
        return;
      case 0x5d: // ]
        this._made([]);
        return;
      case 0x7d: // }
        this._made(new Dict());
        return;
      case 0x28: // (
        this._stack.push(MARK);
        return;
      case 0x4e: // N
        this._stack.push(null);
        return;
      case 0x88:
        this._stack.push(true);
        return;
      case 0x89:
        this._stack.push(false);
        return;
      case 0x4b: // K
        this._stack.push(this._bytes[this._need(1)]);
        return;
      case 0x4d: // M
        this._stack.push(this._view.getUint16(this._need(2), true));
        return;
      case 0x4a: // J
        this._stack.push(this._view.getInt32(this._need(4), true));
        return;
      case 0x47: // G
        this._stack.push(this._view.getFloat64(this._need(8)));
        return;
      case 0x8a:
        this._stack.push(this._long());
        return;
      case 0x8c:
        this._stack.push(this._text(this._bytes[this._need(1)]));
        return;
      case 0x58: // X
        this._stack.push(this._text(this._view.getUint32(this._need(4), true)));
        return;
      case 0x94:
        this._remember(this._memo.length);
        return;
      case 0x71: // q
        this._remember(this._bytes[this._need(1)]);
        return;
      case 0x72: // r
        this._remember(this._view.getUint32(this._need(4), true));
        return;
      case 0x68: // h
        this._recall(this._bytes[this._need(1)]);
        return;
      case 0x6a: // j
        this._recall(this._view.getUint32(this._need(4), true));
        return;
      case 0x61: // a
        this._append([this._popped()]);
        return;
      case 0x65: // e
        this._append(this._marked());
        return;
      case 0x73: // s
        this._set([this._popped(), this._popped()].reverse());
        return;
      case 0x75: // u
        this._set(this._marked());
        return;
      case 0x86:
        this._pair();
        return;
      default:
        throw this._refusal(code, at);
    }
  }

  private _refusal(code: number, at: number): FileError {
    if (code === GLOBAL || code === STACK_GLOBAL) {
      const end = this._bytes.indexOf(0x0a, this._bytes.indexOf(0x0a, this._at) + 1);
      const name =
        code === GLOBAL
          ? ascii(this._bytes.subarray(this._at, Math.min(end, this._at + 120))).replace('\n', '.')
          : this._stack
              .slice(-2)
              .map(part => (typeof part === 'string' ? part : '?'))
              .join('.')
              .slice(0, 120);
      return new FileError(
        `it wants ${name}, which no snapshot of torch's holds: it could run code, so nothing of it was read`
      );
    }
    const shown = code.toString(16).padStart(2, '0');
    return new FileError(
      `it has the opcode 0x${shown} at byte ${at.toLocaleString('en-US')}, which no snapshot of ` +
        "torch's needs; nothing of it was read"
    );
  }

  /** Where the next so many bytes begin; they are passed over. */
  private _need(count: number): number {
    const at = this._at;
    if (at + count > this._bytes.length) {
      throw new FileError('it is truncated');
    }
    this._at = at + count;
    return at;
  }

  /** A whole number of up to 72 bits; beyond 2^53 it is the nearest that there is. */
  private _long(): number {
    const count = this._bytes[this._need(1)];
    if (count > 9) {
      throw new FileError('it has an integer of more than 72 bits');
    }
    const at = this._need(count);
    if (count === 0) {
      return 0;
    }
    let value = 0;
    for (let i = count - 1; i >= 0; i--) {
      value = value * 256 + this._bytes[at + i];
    }
    return this._bytes[at + count - 1] < 128 ? value : value - 2 ** (8 * count);
  }

  private _text(length: number): string {
    if (length > LONGEST_TEXT) {
      throw new FileError(
        `one of its texts claims to have ${length.toLocaleString('en-US')} bytes`
      );
    }
    const at = this._need(length);
    return this._decoder.decode(this._bytes.subarray(at, at + length));
  }

  private _made(container: Plain): void {
    if (this._allowed-- <= 0) {
      throw new FileError("it makes more lists and dicts than a snapshot of torch's of its length");
    }
    this._stack.push(container);
  }

  private _remember(place: number): void {
    const top = this._stack[this._stack.length - 1];
    if (top === undefined || top === MARK) {
      throw new FileError('its pickle is broken: nothing to remember');
    }
    if (place > this._memo.length || place > MOST_MEMO) {
      throw new FileError('its pickle is broken: its memo has holes');
    }
    this._memo[place] = top;
  }

  private _recall(place: number): void {
    const found = this._memo[place];
    if (found === undefined) {
      throw new FileError('its pickle is broken: it refers to what is not there');
    }
    this._stack.push(found);
  }

  private _popped(): Plain {
    const top = this._stack.pop();
    if (top === undefined || typeof top === 'symbol') {
      throw new FileError('its pickle is broken: its stack is empty');
    }
    return top;
  }

  /** What stands above the last mark. */
  private _marked(): Plain[] {
    const at = this._stack.lastIndexOf(MARK);
    if (at < 0) {
      throw new FileError('its pickle is broken: a mark is missing');
    }
    const found = this._stack.splice(at);
    found.shift();
    return found as Plain[];
  }

  private _append(items: Plain[]): void {
    const list = this._stack[this._stack.length - 1];
    if (!Array.isArray(list)) {
      throw new FileError('its pickle is broken: no list to append to');
    }
    for (const item of items) {
      list.push(item);
    }
  }

  private _set(items: Plain[]): void {
    const dict = this._stack[this._stack.length - 1];
    if (!isDict(dict) || items.length % 2 > 0) {
      throw new FileError('its pickle is broken: no dict to put something into');
    }
    for (let i = 0; i < items.length; i += 2) {
      const key = items[i];
      if (typeof key === 'object' && key !== null) {
        throw new FileError('it has a dict with a key that is neither a text nor a number');
      }
      dict[String(key)] = items[i + 1];
    }
  }

  /** The one kind of tuple: a pool's id. */
  private _pair(): void {
    const second = this._popped();
    const first = this._popped();
    if (typeof first !== 'number' || typeof second !== 'number') {
      throw new FileError('it has a tuple that is no pair of numbers');
    }
    this._made([first, second]);
  }

  private readonly _view: DataView;
  private readonly _decoder = new TextDecoder();
  private readonly _stack: (Plain | typeof MARK)[] = [];
  private readonly _memo: Plain[] = [];
  private _allowed: number;
  private _at = 0;
}

export function isDict(value: unknown): value is IPlainDict {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function ascii(bytes: Uint8Array): string {
  return Array.from(bytes, byte =>
    byte === 10 || (byte >= 32 && byte < 127) ? String.fromCharCode(byte) : '?'
  ).join('');
}
