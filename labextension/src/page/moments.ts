/** The sums of a followed card at every position, and the positions that are drawn. */

import { FREE_COMPLETED, FREE_REQUESTED, type ICard } from './snapshot.js';
import type { IAllocations } from './follow.js';
import type { IStay } from './stretches.js';

/** Stretches of the timeline; each keeps its highest and lowest allocated and highest reserved. */
const BINS = 400;

/** Bytes and blocks at each position: before each event, and at the end. */
export interface ICurves {
  allocated: Float64Array;
  active: Float64Array;
  requested: Float64Array;
  reserved: Float64Array;
  count: Float64Array;
}

export function curvesOf(card: ICard, a: IAllocations, stays: IStay[]): ICurves {
  const events = card.action.length;
  const sum = (amount: number[] | null, ended: number[]): Float64Array => {
    const curve = new Float64Array(events + 1);
    a.born.forEach((born, i) => {
      const bytes = amount === null ? 1 : amount[i];
      if (ended[i] >= 0) {
        curve[born + 1] += bytes; // -1 before the recording
        if (ended[i] < events) {
          curve[ended[i] + 1] -= bytes;
        }
      }
    });
    return summed(curve);
  };
  const reserved = new Float64Array(events + 1);
  for (const { from, until, size } of stays) {
    reserved[from] += size;
    if (until < events) {
      reserved[until + 1] -= size;
    }
  }
  return {
    allocated: sum(a.block, a.freed),
    active: sum(a.block, a.died),
    requested: sum(a.requested, a.freed),
    reserved: summed(reserved),
    count: sum(null, a.freed)
  };
}

function summed(changes: Float64Array): Float64Array {
  for (let i = 1; i < changes.length; i++) {
    changes[i] += changes[i - 1];
  }
  return changes;
}

/** Where a curve is highest between two positions, the second left out; the earliest. */
export function highest(curve: Float64Array, low: number, high: number, sign = 1): number {
  let best = low;
  for (let i = low + 1; i < high; i++) {
    if (sign * curve[i] > sign * curve[best]) {
      best = i;
    }
  }
  return best;
}

/** The positions that are drawn, ascending: see nbmem/report/analysis/timeline.py. */
export function positionsOf(card: ICard, curves: ICurves): number[] {
  const events = card.action.length;
  const chosen = new Set<number>([0, events, highest(curves.allocated, 0, events + 1)]);
  for (let bin = 0; bin < BINS && events > 4 * BINS; bin++) {
    const [low, high] = [bin, bin + 1].map(edge => Math.floor((edge * (events + 1)) / BINS));
    chosen.add(highest(curves.allocated, low, high));
    chosen.add(highest(curves.allocated, low, high, -1));
    chosen.add(highest(curves.reserved, low, high));
  }
  if (events <= 4 * BINS) {
    for (let position = 0; position <= events; position++) {
      chosen.add(position);
    }
  }
  // Between the two halves of one free a block would seem to wait for a stream.
  const settled = [...chosen].map(position => position + Number(halfway(card, position)));
  return [...new Set(settled)].sort((a, b) => a - b);
}

function halfway({ action, addr }: ICard, position: number): boolean {
  return (
    position > 0 &&
    position < action.length &&
    action[position - 1] === FREE_REQUESTED &&
    action[position] === FREE_COMPLETED &&
    addr[position - 1] === addr[position]
  );
}
