/** The pool's map at the drawn positions: segments, and the blocks that tile them. */

import { MIXED, PENDING_PIECE, RELEASABLE, STUCK, UNKNOWN } from '../categories.js';
import type { IPoolMap } from '../explorer/poolmap.js';
import type { IAllocations } from './follow.js';
import type { Patience } from './refused.js';
import type { ICard } from './snapshot.js';
import { SMALL_SEGMENT, type IStay } from './stretches.js';

/** Parts of the pool that a picture can tell from each other: rows of pixels. */
const IN_SIGHT = 8000;
/** Numbers in all tilings together; beyond them more neighbours become one piece. */
const MOST = 2_000_000;
/** Segments that are drawn, the largest. */
const MOST_SEGMENTS = 400;

export interface ILaid {
  pool: IPoolMap;
  /** At each position: bytes that empty_cache() would give back. */
  releasable: number[];
}

/** Lay them out; `highest` is the most that was reserved. */
export function laidOut(
  card: ICard,
  a: IAllocations,
  stays: IStay[],
  positions: number[],
  highest: number,
  patience: Patience
): ILaid {
  for (let least = Math.floor(highest / IN_SIGHT); ; least = 4 * least + 1) {
    const laid = new Layer(card, a, stays, positions, least).laid(patience);
    if (laid !== null) {
      return laid;
    }
  }
}

/** A segment while the positions are walked through. */
interface IHere {
  stay: IStay;
  index: number;
  /** Allocations in it, by address. */
  blocks: Map<number, number>;
  changed: boolean;
  releasable: number;
}

class Layer {
  constructor(
    private readonly _card: ICard,
    private readonly _a: IAllocations,
    stays: IStay[],
    private readonly _positions: number[],
    private readonly _least: number
  ) {
    const identity = new Map<string, number>();
    for (const stay of stays) {
      const { addr, size, stream, small, expandable, pool } = stay;
      const key = [addr, size, stream, small, expandable, pool].join();
      let index = identity.get(key);
      if (index === undefined) {
        index = identity.size;
        identity.set(key, index);
        this._segments.push([size, Number(small) + 2 * Number(expandable), stream, pool]);
        this._states.push([]);
        this._last.push([0, -1]);
      }
      const here: IHere = { stay, index, blocks: new Map(), changed: true, releasable: 0 };
      put(this._begin, stay.from, here);
      put(this._end, stay.until + 1, here);
    }
  }

  /** Null where more pieces must be drawn as one. */
  laid(patience: Patience): ILaid | null {
    const releasable: number[] = [];
    let position = 0;
    for (let row = 0; row < this._positions.length; row++) {
      for (; position <= this._positions[row]; position++) {
        patience.ask(position);
        this._step(position, row);
      }
      let sum = 0;
      for (const here of this._now) {
        if (here.changed) {
          here.changed = false;
          this._tile(here, row);
        }
        sum += here.releasable;
      }
      releasable.push(sum);
      if (this._written > MOST && this._least < this._largest()) {
        return null;
      }
    }
    return { pool: this._pool(), releasable };
  }

  private _largest(): number {
    return this._segments.reduce((most, [size]) => Math.max(most, size), 0);
  }

  /** What changed between the position before and this one. */
  private _step(position: number, row: number): void {
    const gone = this._end.get(position) ?? [];
    const come = this._begin.get(position) ?? [];
    for (const here of gone) {
      this._now.splice(this._at(here.stay.addr), 1);
      this._state(here.index, row, -1);
    }
    for (const here of come) {
      this._now.splice(this._at(here.stay.addr) + 1, 0, here);
    }
    for (const { blocks } of gone) {
      blocks.forEach(allocation => this._put(allocation));
    }
    if (position === 0) {
      for (let one = 0; this._a.born[one] < 0; one++) {
        this._put(one);
      }
    } else if (this._a.subject[position - 1] >= 0) {
      this._follow(this._a.subject[position - 1], position);
    }
  }

  /** An allocation was born, freed, or is free now. */
  private _follow(allocation: number, position: number): void {
    const here = this._home(this._a.addr[allocation]);
    if (here === null) {
      return;
    }
    here.changed = true;
    if (this._a.died[allocation] >= position) {
      here.blocks.set(this._a.addr[allocation], allocation);
    } else if (here.blocks.get(this._a.addr[allocation]) === allocation) {
      here.blocks.delete(this._a.addr[allocation]);
    }
  }

  /** The last segment that begins at an address or before it; -1 for none. */
  private _at(addr: number): number {
    let low = 0;
    let high = this._now.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this._now[middle].stay.addr <= addr) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low - 1;
  }

  private _home(addr: number): IHere | null {
    const here = this._now[this._at(addr)];
    return here !== undefined && addr < here.stay.addr + here.stay.size ? here : null;
  }

  private _put(allocation: number): void {
    const here = this._home(this._a.addr[allocation]);
    if (here !== null) {
      here.blocks.set(this._a.addr[allocation], allocation);
      here.changed = true;
    }
  }

  private _tile(here: IHere, row: number): void {
    const flat = this._pieces(here, this._positions[row]);
    const key = flat.join();
    let tiling = this._index.get(key);
    if (tiling === undefined) {
      tiling = this._tilings.push(flat) - 1;
      this._written += flat.length;
      this._index.set(key, tiling);
    }
    this._state(here.index, row, tiling);
  }

  private _state(segment: number, row: number, tiling: number): void {
    const [moment, before] = this._last[segment];
    const states = this._states[segment];
    if (tiling !== before) {
      states.push(row - moment, tiling);
      this._last[segment] = [row, tiling];
    }
  }

  /** Bytes, kind, blocks if used, free bytes if mixed: one piece after the other. */
  private _pieces(here: IHere, position: number): number[] {
    const { stay } = here;
    const row = new Row(this._least);
    const blocks = [...here.blocks.values()].sort((x, y) => this._a.addr[x] - this._a.addr[y]);
    let place = stay.addr;
    here.releasable = 0;
    const gap = (until: number): void => {
      const [first, last] = this._given(stay, place, until, blocks.length === 0);
      row.add(first - place, STUCK, 0);
      row.add(last - first, RELEASABLE, 0);
      row.add(until - last, STUCK, 0);
      here.releasable += last - first;
    };
    for (const block of blocks) {
      gap(Math.max(this._a.addr[block], place));
      const kind = UNKNOWN + (this._a.freed[block] >= position ? 0 : PENDING_PIECE);
      row.add(this._a.block[block], kind, 1);
      place = this._a.addr[block] + this._a.block[block];
    }
    gap(Math.max(stay.addr + stay.size, place));
    return row.done();
  }

  /** What of a gap goes back to the driver: whole segments, or whole pages if it has any. */
  private _given(stay: IStay, low: number, high: number, empty: boolean): [number, number] {
    if (!stay.expandable) {
      return empty ? [low, high] : [high, high];
    }
    const page = stay.small ? SMALL_SEGMENT : this._card.settings.largeSegment;
    const first = stay.addr + Math.ceil((low - stay.addr) / page) * page;
    const last = stay.addr + Math.floor((high - stay.addr) / page) * page;
    return last > first ? [first, last] : [high, high];
  }

  private _pool(): IPoolMap {
    const drawn = this._segments
      .map(([size], segment) => ({ size, segment }))
      .sort((a, b) => b.size - a.size)
      .slice(0, MOST_SEGMENTS)
      .map(({ segment }) => segment);
    return {
      unit: 1,
      segments: drawn.map(segment => this._segments[segment]),
      tilings: this._tilings,
      states: drawn.map(segment => this._states[segment]),
      event: this._positions
    };
  }

  private readonly _segments: [number, number, number, number][] = [];
  private readonly _states: number[][] = [];
  private readonly _last: [number, number][] = [];
  private readonly _tilings: number[][] = [];
  private readonly _index = new Map<string, number>();
  private readonly _begin = new Map<number, IHere[]>();
  private readonly _end = new Map<number, IHere[]>();
  private readonly _now: IHere[] = [];
  private _written = 0;
}

/** One segment's pieces: alike neighbours are one, and so are narrow ones in the same few bytes. */
class Row {
  constructor(private readonly _least: number) {}

  add(size: number, kind: number, count: number): void {
    if (size <= 0) {
      return;
    }
    const last = this._pieces[this._pieces.length - 1];
    if (last !== undefined && last.kind === kind && !last.mixed) {
      last.size += size;
      last.count += count;
    } else {
      this._merge();
      this._pieces.push({ at: this._end, size, kind, count, free: 0, mixed: false });
    }
    this._end += size;
  }

  done(): number[] {
    this._merge();
    return this._pieces.flatMap(({ size, kind, count, free, mixed }) =>
      mixed ? [size, kind | MIXED, count, free] : kind < 0 ? [size, kind] : [size, kind, count]
    );
  }

  /** Put the last piece into the one before it if both are narrow and lie in the same part. */
  private _merge(): void {
    const [before, last] = this._pieces.slice(-2);
    if (last === undefined || last.size >= this._least || last.kind === RELEASABLE) {
      return;
    }
    const part = (at: number): number => Math.floor(at / this._least);
    const narrow = before.mixed || (before.size < this._least && before.kind !== RELEASABLE);
    if (narrow && part(before.at) === part(last.at)) {
      const [had, has] = [before, last].map(({ mixed, free, kind, size }) =>
        mixed ? free : kind === STUCK ? size : 0
      );
      before.kind = before.kind >= 0 ? before.kind : last.kind;
      before.size += last.size;
      before.count += last.count;
      before.free = had + has;
      before.mixed = true;
      this._pieces.pop();
    }
  }

  private readonly _pieces: {
    at: number;
    size: number;
    kind: number;
    count: number;
    free: number;
    mixed: boolean;
  }[] = [];
  private _end = 0;
}

function put<T>(map: Map<number, T[]>, at: number, value: T): void {
  const known = map.get(at);
  if (known === undefined) {
    map.set(at, [value]);
  } else {
    known.push(value);
  }
}
