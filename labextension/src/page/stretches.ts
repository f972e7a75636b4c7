/** The segments of a card over time, worked out backwards from the end: see allocator/stretches.py. */

import type { Patience } from './refused.js';
import type { ICard, ISegmentRow } from './snapshot.js';
import { SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP } from './snapshot.js';

export const SMALL_SEGMENT = 2 * 2 ** 20;

/** A segment, or one contiguous mapped part of a virtual range, as long as it was as it is here. */
export interface IStay extends ISegmentRow {
  /** The first position at which it was there; a position is the index of the next event. */
  from: number;
  /** The last one. */
  until: number;
}

/** Every stay, in the order in which they began. */
export function staysOf(card: ICard, patience: Patience): IStay[] {
  const events = card.action.length;
  const stretches = new Stretches(card.segments.map(row => ({ ...row, from: 0, until: events })));
  for (let event = events - 1; event >= 0; event--) {
    const [addr, size, stream] = [card.addr[event], card.size[event], card.stream[event]];
    const action = card.action[event];
    patience.ask(event);
    if (action === SEGMENT_ALLOC || action === SEGMENT_MAP) {
      stretches.cut(event, addr, addr + size);
    } else if (action === SEGMENT_FREE) {
      stretches.add(event, {
        addr,
        size,
        stream,
        small: size <= SMALL_SEGMENT,
        expandable: false,
        pool: 0
      });
    } else if (action === SEGMENT_UNMAP) {
      stretches.join(event, {
        addr,
        size,
        stream,
        small: size <= SMALL_SEGMENT,
        expandable: true,
        pool: 0
      });
    }
  }
  return stretches.done();
}

class Stretches {
  /** By address. */
  constructor(private readonly _now: IStay[]) {}

  /** Before the event these bytes were not there. */
  cut(event: number, low: number, high: number): void {
    const first = this._at(low);
    let end = first;
    const left: IStay[] = [];
    while (end < this._now.length && this._now[end].addr < high) {
      const old = this._now[end++];
      this._ends(old, event);
      const stop = old.addr + old.size;
      if (old.addr < low) {
        left.push({ ...old, size: low - old.addr, from: 0, until: event });
      }
      if (stop > high) {
        left.push({ ...old, addr: high, size: stop - high, from: 0, until: event });
      }
    }
    this._now.splice(first, end - first, ...left);
  }

  /** Before the event this segment was there. */
  add(event: number, row: ISegmentRow): void {
    const at = this._at(row.addr);
    const same = this._now[at]?.addr === row.addr ? 1 : 0;
    this._now.slice(at, at + same).forEach(old => this._ends(old, event));
    this._now.splice(at, same, { ...row, from: 0, until: event });
  }

  /** Before the event these pages were there: one stretch with their neighbours. */
  join(event: number, row: ISegmentRow): void {
    const at = this._at(row.addr);
    const joins = (old: IStay | undefined): old is IStay =>
      old !== undefined && old.expandable && old.stream === row.stream;
    let [first, end] = [at, at];
    let whole = row;
    const before = this._now[at - 1];
    if (joins(before) && before.addr + before.size === row.addr) {
      const { addr, small, pool } = before;
      whole = { ...whole, addr, size: before.size + whole.size, small, pool };
      first = at - 1;
    }
    const after = this._now[at];
    if (joins(after) && after.addr === row.addr + row.size) {
      whole = { ...whole, size: whole.size + after.size, small: after.small, pool: after.pool };
      end = at + 1;
    }
    this._now.slice(first, end).forEach(old => this._ends(old, event));
    this._now.splice(first, end - first, { ...whole, from: 0, until: event });
  }

  done(): IStay[] {
    return [...this._over, ...this._now].sort((a, b) => a.from - b.from || a.addr - b.addr);
  }

  /** The first that reaches beyond an address. */
  private _at(addr: number): number {
    let low = 0;
    let high = this._now.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this._now[middle].addr + this._now[middle].size <= addr) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  private _ends(stay: IStay, event: number): void {
    if (stay.until > event) {
      this._over.push({ ...stay, from: event + 1 });
    }
  }

  private readonly _over: IStay[] = [];
}
