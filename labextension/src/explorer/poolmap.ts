/** The allocator's map as it is written: segments, how they can be tiled, and when they were. */

import { MIXED, PENDING_PIECE, RELEASABLE } from '../categories.js';

/** As nbmem/views/explorer/data.py writes it; bytes in units. */
export interface IWrittenPool {
  unit: number;
  /** Bytes, 1 if small + 2 if expandable, stream, private pool. */
  segments: [number, number, number, number][];
  /** Bytes, kind, blocks if used, free bytes if mixed: one piece after the other. */
  tilings: number[][];
  /** By segment: moments since the last change, tiling; one after the other. */
  states: number[][];
}

export interface IPoolMap extends IWrittenPool {
  /** The moments: index of the next event; ascending. */
  event: number[];
}

export interface ISegment {
  size: number;
  small: boolean;
  expandable: boolean;
  stream: number;
  pool: number;
}

export interface IPiece {
  size: number;
  state: 'used' | 'pending' | 'releasable' | 'stuck';
  /** -1 for a free piece. */
  category: number;
  blocks: number;
  /** Of several narrow pieces drawn as one: bytes that are free in between; else null. */
  free: number | null;
}

export function mapOf(pool: IWrittenPool, event: number[]): IPoolMap {
  return { ...pool, event };
}

/** The segments at an event, the largest first, with their pieces by address. */
export function tiledAt(pools: IPoolMap[], event: number): [ISegment, IPiece[]][] {
  const exact = pools.slice(1).find(pool => pool.event[0] === event);
  const pool = exact ?? pools[0];
  if (pool === undefined) {
    return [];
  }
  const after = pool.event.findIndex(moment => moment > event);
  const row = (after < 0 ? pool.event.length : Math.max(after, 1)) - 1;
  const found: [ISegment, IPiece[]][] = [];
  pool.segments.forEach(([size, flags, stream, own], segment) => {
    const pieces = piecesOf(pool, pool.tilings[tilingAt(pool.states[segment], row)]);
    if (pieces.length > 0) {
      const kind = { small: (flags & 1) > 0, expandable: (flags & 2) > 0, stream, pool: own };
      found.push([{ size: size * pool.unit, ...kind }, pieces]);
    }
  });
  return found.sort(([a], [b]) => b.size - a.size);
}

/** How a segment is tiled at a moment; -1 where it is not there. */
function tilingAt(states: number[], row: number): number {
  let moment = 0;
  let tiling = -1;
  for (let i = 0; i < states.length; i += 2) {
    moment += states[i];
    if (moment > row) {
      break;
    }
    tiling = states[i + 1];
  }
  return tiling;
}

function piecesOf({ unit }: IPoolMap, flat: number[] = []): IPiece[] {
  const pieces: IPiece[] = [];
  for (let i = 0; i < flat.length;) {
    const size = flat[i++] * unit;
    const kind = flat[i++];
    if (kind < 0) {
      const state = kind === RELEASABLE ? 'releasable' : 'stuck';
      pieces.push({ size, state, category: -1, blocks: 0, free: null });
    } else {
      const blocks = flat[i++];
      const free = (kind & MIXED) > 0 ? flat[i++] * unit : null;
      const state = (kind & PENDING_PIECE) > 0 ? 'pending' : 'used';
      pieces.push({ size, state, category: kind % PENDING_PIECE, blocks, free });
    }
  }
  return pieces;
}
