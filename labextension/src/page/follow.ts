/**
 * Every allocation of a snapshot: its block and its life, by events whose addresses are the truth.
 *
 * A block comes from the front of a free piece; its size follows from the split rule. What contradicts
 * itself is mended and counted, as nbmem/allocator/follow.py and pieces.py do.
 */

import type { Patience } from './refused.js';
import {
  ALLOC,
  FREE_COMPLETED,
  FREE_REQUESTED,
  SEGMENT_ALLOC,
  SEGMENT_FREE,
  SEGMENT_MAP,
  SEGMENT_UNMAP,
  type ICard
} from './snapshot.js';
import { livingBefore, rounded, threshold } from './start.js';
import type { IStay } from './stretches.js';

/** Contradictions that are looked into; each costs a look at every piece. */
const MOST_SEARCHES = 2000;

/** Columns of every allocation, in the order of birth. */
export interface IAllocations {
  /** Event of its birth; -1 before the recording. */
  born: number[];
  /** Event that asked for its free; the number of events if never, -1 if before. */
  freed: number[];
  /** Event at which it was free. */
  died: number[];
  addr: number[];
  requested: number[];
  block: number[];
  stack: number[];
  /** By event: which of them it is about; -1 for none. */
  subject: Int32Array;
}

export interface IFollowed {
  allocations: IAllocations;
  notes: string[];
}

export function follow(card: ICard, stays: IStay[], patience: Patience): IFollowed {
  const before = stays.filter(stay => stay.from === 0).sort((a, b) => a.addr - b.addr);
  const { old, guessed } = livingBefore(card, before);
  const heap = new Heap(card, before);
  old.forEach(one => heap.track(one.addr, one.requested, one.block, one.pending, one.stack));
  heap.fill(before, old);
  heap.run(patience);
  const notes = [...heap.notes()];
  if (guessed > 0) {
    notes.unshift(
      `${guessed} blocks from before the recording may each be up to 1 MiB larger than shown.`
    );
  }
  return { allocations: heap.allocations, notes };
}

class Heap {
  readonly allocations: IAllocations;

  constructor(
    private readonly _card: ICard,
    before: IStay[]
  ) {
    const subject = new Int32Array(_card.action.length).fill(-1);
    this.allocations = {
      born: [],
      freed: [],
      died: [],
      addr: [],
      requested: [],
      block: [],
      stack: [],
      subject
    };
    before
      .filter(({ expandable }) => !expandable)
      .forEach(({ addr, size }) => this._segments.set(addr, size));
  }

  track(addr: number, requested: number, block: number, pending: boolean, stack: number): void {
    const end = this._card.action.length;
    this._born(-1, addr, requested, block, stack);
    if (pending) {
      this.allocations.freed[this.allocations.freed.length - 1] = -1;
    }
    this.allocations.died[this.allocations.died.length - 1] = end;
  }

  /** The free pieces between the blocks. */
  fill(segments: IStay[], old: { addr: number; block: number }[]): void {
    let at = 0;
    for (const { addr, size } of segments) {
      let place = addr;
      for (; at < old.length && old[at].addr < addr + size; at++) {
        this._add(place, old[at].addr - place);
        place = old[at].addr + old[at].block;
      }
      this._add(place, addr + size - place);
    }
  }

  run(patience: Patience): void {
    const { action, addr, size, stack } = this._card;
    for (let event = 0; event < action.length; event++) {
      patience.ask(event);
      switch (action[event]) {
        case ALLOC:
          this._alloc(event, addr[event], size[event], stack[event]);
          break;
        case FREE_REQUESTED:
          this._requested(event, addr[event]);
          break;
        case FREE_COMPLETED:
          this._completed(event, addr[event]);
          break;
        default:
          this._driver(action[event], addr[event], size[event]);
      }
    }
  }

  *notes(): Iterable<string> {
    for (const [count, text] of [
      [this._resized, 'blocks had another size than the settings give: were they changed?'],
      [this._overlapping, 'allocations were made where another one still lived.'],
      [this._homeless, 'allocations lie in no known segment; their segment is not counted.'],
      [this._badSegments, 'segments were given back or taken that were not as they should.'],
      [this._unknownFrees, 'frees had no allocation.']
    ] as const) {
      if (count > 0) {
        yield `${count} ${text}`;
      }
    }
  }

  private _alloc(event: number, addr: number, requested: number, stack: number): void {
    const wanted = rounded(requested, this._card.settings.divisions);
    const piece = this._sizeAt.get(addr) ?? 0;
    let block = wanted;
    if (piece < wanted) {
      this._mend(event, addr, wanted);
    } else {
      this._remove(addr);
      if (piece - wanted >= threshold(wanted, this._card)) {
        this._add(addr + wanted, piece - wanted);
      } else {
        block = piece;
      }
    }
    this._born(event, addr, requested, block, stack);
  }

  private _born(
    event: number,
    addr: number,
    requested: number,
    block: number,
    stack: number
  ): void {
    const a = this.allocations;
    const end = this._card.action.length;
    this._live.set(addr, a.born.length);
    if (event >= 0) {
      a.subject[event] = a.born.length;
    }
    a.born.push(event);
    a.freed.push(end);
    a.died.push(end);
    a.addr.push(addr);
    a.requested.push(requested);
    a.block.push(block);
    a.stack.push(stack);
  }

  private _requested(event: number, addr: number): void {
    const found = this._live.get(addr);
    if (found === undefined) {
      this._unknownFrees++;
    } else {
      this.allocations.freed[found] = event;
      this.allocations.subject[event] = found;
    }
  }

  private _completed(event: number, addr: number): void {
    const found = this._live.get(addr);
    if (found === undefined) {
      this._unknownFrees++;
      return;
    }
    this._live.delete(addr);
    const { freed, died, block, subject } = this.allocations;
    died[found] = event;
    subject[event] = found;
    if (freed[found] === this._card.action.length) {
      freed[found] = event;
    }
    if (!this._orphans.has(found)) {
      this._join(addr, block[found]);
    }
  }

  private _driver(action: number, addr: number, size: number): void {
    if (action === SEGMENT_ALLOC) {
      for (const start of this._over(addr, size)) {
        this._badSegments++;
        this._forget(start, this._segments.get(start) ?? 0);
      }
      this._segments.set(addr, size);
      this._add(addr, size);
    } else if (action === SEGMENT_FREE) {
      if (this._sizeAt.get(addr) === size && this._segments.get(addr) === size) {
        this._remove(addr);
        this._segments.delete(addr);
      } else {
        this._badSegments++;
        this._forget(addr, this._segments.get(addr) ?? size);
      }
    } else if (action === SEGMENT_MAP) {
      this._join(addr, size);
    } else if (action === SEGMENT_UNMAP) {
      this._cutOut(addr, size);
    }
  }

  /** Segments that a new one overlaps: those must have been given back. */
  private _over(addr: number, size: number): number[] {
    const found: number[] = [];
    for (const [start, bytes] of this._segments) {
      if (start < addr + size && start + bytes > addr) {
        found.push(start);
      }
    }
    return found;
  }

  /** Drop a segment with all that is in it; what still lived there lies in no segment. */
  private _forget(addr: number, size: number): void {
    this._cutOut(addr, size);
    for (const [start, index] of this._live) {
      if (addr <= start && start < addr + size) {
        this._orphans.add(index);
      }
    }
    this._segments.delete(addr);
  }

  private _add(addr: number, size: number): void {
    if (size > 0) {
      this._sizeAt.set(addr, size);
      this._startAt.set(addr + size, addr);
    }
  }

  private _remove(addr: number): void {
    const size = this._sizeAt.get(addr) ?? 0;
    this._sizeAt.delete(addr);
    this._startAt.delete(addr + size);
  }

  /** A new free piece, merged with free neighbours of its segment. */
  private _join(addr: number, size: number): void {
    let [start, end] = [addr, addr + size];
    const before = this._startAt.get(addr);
    if (before !== undefined && !this._segments.has(addr)) {
      this._remove(before);
      start = before;
    }
    const after = this._sizeAt.get(end);
    if (after !== undefined && !this._segments.has(end)) {
      this._remove(end);
      end += after;
    }
    this._add(start, end - start);
  }

  /** Take addresses out of the free pieces; what sticks out stays free. */
  private _cutOut(addr: number, size: number): void {
    const end = addr + size;
    const touched =
      (this._sizeAt.get(addr) ?? 0) >= size
        ? [addr]
        : [...this._sizeAt].filter(([s, n]) => s < end && s + n > addr).map(([s]) => s);
    for (const start of touched) {
      const stop = start + (this._sizeAt.get(start) ?? 0);
      this._remove(start);
      this._add(start, Math.min(addr, stop) - start);
      this._add(end, stop - end);
    }
  }

  /** An allocation where no sufficient free piece begins. */
  private _mend(event: number, addr: number, wanted: number): void {
    const old = this._live.get(addr);
    if (old !== undefined) {
      this._live.delete(addr);
      this._overlapping++;
      const { died, freed, block } = this.allocations;
      died[old] = event;
      freed[old] = Math.min(freed[old], event);
      if (!this._orphans.has(old)) {
        this._join(addr, block[old]);
      }
    } else if (this._searches < MOST_SEARCHES) {
      this._searches++;
      this._findRoom(addr, wanted);
    }
    const have = this._sizeAt.get(addr) ?? 0;
    if (have < wanted) {
      this._homeless++;
      this._orphans.add(this.allocations.born.length);
      return;
    }
    this._remove(addr);
    this._add(addr + wanted, have - wanted);
  }

  /** Make a free piece begin at an address, by cutting what covers it. */
  private _findRoom(addr: number, wanted: number): void {
    if (this._sizeAt.has(addr)) {
      return;
    }
    for (const [start, size] of this._sizeAt) {
      if (start < addr && addr < start + size) {
        this._resized++;
        this._remove(start);
        this._add(start, addr - start);
        this._add(addr, start + size - addr);
        return;
      }
    }
    for (const [start, index] of this._live) {
      const size = this.allocations.block[index];
      if (start < addr && addr + wanted <= start + size && !this._orphans.has(index)) {
        this._resized++;
        this.allocations.block[index] = addr - start;
        this._add(addr, start + size - addr);
        return;
      }
    }
  }

  private readonly _sizeAt = new Map<number, number>();
  private readonly _startAt = new Map<number, number>();
  private readonly _segments = new Map<number, number>();
  private readonly _live = new Map<number, number>();
  private readonly _orphans = new Set<number>();
  private _searches = 0;
  private _resized = 0;
  private _overlapping = 0;
  private _homeless = 0;
  private _badSegments = 0;
  private _unknownFrees = 0;
}
