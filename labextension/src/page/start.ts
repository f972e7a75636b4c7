/** What lived before the first event, worked out from the end: see nbmem/allocator/undo.py. */

import {
  ALLOC,
  ALLOCATED,
  FREE_COMPLETED,
  FREE_REQUESTED,
  INACTIVE,
  type ICard
} from './snapshot.js';
import type { IStay } from './stretches.js';

const MIN_BLOCK = 512;
/** Rounded sizes up to this come from the small pool. */
const SMALL_LIMIT = 2 ** 20;
/** So many events with no free_requested say that the recording left them out. */
const FEW = 3;

/** An allocation from before the recording. */
export interface IOld {
  addr: number;
  requested: number;
  /** Bytes of its block; 0 while that is unsure. */
  block: number;
  pending: boolean;
  stack: number;
}

/** Bytes of the block that a request looks for: see nbmem/allocator/rounding.py. */
export function rounded(size: number, divisions: number[]): number {
  if (size < MIN_BLOCK) {
    return MIN_BLOCK;
  }
  const bits = Math.floor(Math.log2(size)) + 1;
  const parts = divisions[Math.min(Math.max(bits - 21, 0), 15)];
  if (parts > 1 && size > MIN_BLOCK * parts) {
    const floor = 2 ** (bits - 1);
    const step = Math.floor(floor / parts);
    return size === floor ? size : step > 0 ? Math.ceil(size / step) * step : 2 * floor;
  }
  return Math.ceil(size / MIN_BLOCK) * MIN_BLOCK;
}

/** Bytes that must remain for a free piece to be split. */
export function threshold(wanted: number, { settings }: ICard): number {
  if (settings.expandable) {
    return MIN_BLOCK;
  }
  if (wanted >= settings.maxSplit) {
    return Infinity;
  }
  return wanted <= SMALL_LIMIT ? MIN_BLOCK : SMALL_LIMIT + 1;
}

/** The allocations before the first event, by address, and how many may be larger than told. */
export function livingBefore(card: ICard, segments: IStay[]): { old: IOld[]; guessed: number } {
  const found = inSegments(candidates(card), segments);
  let guessed = 0;
  const later = new Later(card);
  found.forEach(({ one, home }, i) => {
    const end = home.addr + home.size;
    const limit = Math.min(found[i + 1]?.one.addr ?? Infinity, end);
    if (one.block === 0) {
      one.block = rounded(one.requested, card.settings.divisions);
      const large = one.block > SMALL_LIMIT && !home.expandable && !card.settings.expandable;
      if (large && one.block >= card.settings.maxSplit) {
        one.block = end - one.addr; // never split: it fills its segment
      } else if (large) {
        const gap = limit - one.addr - one.block;
        const next = gap > SMALL_LIMIT ? later.behind(one.addr, one.addr + one.block) : null;
        if (gap <= SMALL_LIMIT) {
          one.block += Math.max(gap, 0);
        } else if (next !== null) {
          one.block = next - one.addr;
        } else {
          guessed++;
        }
      }
    }
    one.block = Math.min(one.block, limit - one.addr);
  });
  return { old: found.map(({ one }) => one), guessed };
}

/** What has no events and lives at the end, and what is freed before it is allocated. */
function candidates(card: ICard): IOld[] {
  const { action, addr, size } = card;
  const met = new Set<number>();
  const old: IOld[] = [];
  const counts = [0, 0, 0];
  for (let i = 0; i < action.length; i++) {
    if (action[i] <= FREE_COMPLETED) {
      counts[action[i]]++;
    }
  }
  const skips = counts[FREE_REQUESTED] === 0 && counts[FREE_COMPLETED] > FEW;
  for (let i = 0; i < action.length; i++) {
    if (action[i] <= FREE_COMPLETED && !met.has(addr[i])) {
      met.add(addr[i]);
      if (action[i] !== ALLOC) {
        const pending = action[i] === FREE_COMPLETED && !skips;
        old.push({ addr: addr[i], requested: size[i], block: 0, pending, stack: -1 });
      }
    }
  }
  for (const block of card.blocks) {
    if (block.state !== INACTIVE && !met.has(block.addr)) {
      const { requested, size: bytes, stack } = block;
      const pending = block.state !== ALLOCATED;
      old.push({ addr: block.addr, requested, block: bytes, pending, stack });
    }
  }
  return old.sort((a, b) => a.addr - b.addr);
}

function inSegments(old: IOld[], segments: IStay[]): { one: IOld; home: IStay }[] {
  const found: { one: IOld; home: IStay }[] = [];
  let at = 0;
  for (const one of old) {
    while (at < segments.length && segments[at].addr + segments[at].size <= one.addr) {
      at++;
    }
    const home = segments[at];
    if (home !== undefined && home.addr <= one.addr) {
      found.push({ one, home });
    }
  }
  return found;
}

/** What was allocated right behind a block while it lived shows where the block ended. */
class Later {
  constructor(private readonly _card: ICard) {}

  behind(addr: number, end: number): number | null {
    const { starts, deaths } = this._known();
    const death = deaths.get(addr) ?? Infinity;
    let low = 0;
    let high = starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (starts[middle][0] < end) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (let i = low; i < starts.length && starts[i][0] <= end + SMALL_LIMIT; i++) {
      if (starts[i][1] < death) {
        return starts[i][0];
      }
    }
    return null;
  }

  private _known(): { starts: [number, number][]; deaths: Map<number, number> } {
    if (this._index === null) {
      const { action, addr } = this._card;
      const starts = new Map<number, number>();
      const deaths = new Map<number, number>();
      for (let i = 0; i < action.length; i++) {
        if (action[i] === ALLOC && !starts.has(addr[i])) {
          starts.set(addr[i], i);
        } else if (action[i] === FREE_COMPLETED && !deaths.has(addr[i])) {
          deaths.set(addr[i], i);
        }
      }
      this._index = { starts: [...starts].sort(([a], [b]) => a - b), deaths };
    }
    return this._index;
  }

  private _index: { starts: [number, number][]; deaths: Map<number, number> } | null = null;
}
