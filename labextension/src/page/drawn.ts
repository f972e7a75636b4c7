/** A card of a snapshot as the explorer draws it. What only nbmem's Python knows is not guessed. */

import {
  CACHED_RELEASABLE,
  CACHED_STUCK,
  CATEGORIES,
  FREE,
  PENDING,
  ROUNDING,
  UNKNOWN
} from '../categories.js';
import type { IData, ILives } from '../explorer/data.js';
import FIGURES from '../explorer/figures.json' with { type: 'json' };
import { formatBytes, formatMs } from '../format.js';
import { follow, type IAllocations } from './follow.js';
import { Lines } from './lines.js';
import { curvesOf, highest, positionsOf, type ICurves } from './moments.js';
import type { Patience } from './refused.js';
import { OOM, type ICard, type Stacks } from './snapshot.js';
import { staysOf } from './stretches.js';
import { laidOut } from './tilings.js';

/** Allocations that are told one by one; of those, the largest at the peak, the end and in between. */
const LIVES = 800;
const [AT_PEAK, AT_END, AT_MOMENT, SPREAD] = [160, 80, 8, 48];

const NOTE =
  "A snapshot of torch's names neither the card nor weights or gradients: the total is the highest " +
  'reserved figure. nbmem in Python tells more of the same file, its phases and categories: ' +
  'nbmem export html FILE report.html.';

export function drawn(card: ICard, stacks: Stacks, name: string, patience: Patience): IData {
  const stays = staysOf(card, patience);
  const { allocations, notes } = follow(card, stays, patience);
  const curves = curvesOf(card, allocations, stays);
  const events = card.action.length;
  const positions = positionsOf(card, curves);
  const total = curves.reserved[highest(curves.reserved, 0, events + 1)];
  const { pool, releasable } = laidOut(card, allocations, stays, positions, total, patience);
  const peak = highest(curves.allocated, 0, events + 1);
  const lines = new Lines(stacks);
  const at = (position: number): number =>
    events === 0 ? 0 : (card.t[Math.max(position - 1, 0)] - card.t[0]) * 1000;
  const times = positions.map(at);
  times.forEach((time, i) => (times[i] = Math.max(time, times[i - 1] ?? 0)));
  const told = chosen(allocations, curves, peak, events);
  return {
    ...NOTHING,
    // As nbmem/views/verdict.py writes them.
    verdict:
      `Peak ${formatBytes(total)} reserved by torch: ` +
      `${events === 0 ? 'no allocation recorded, ' : ''}the card is not in the file.`,
    peak_figures:
      (events === 0 ? 'Throughout: ' : 'Most allocated: ') +
      `${formatBytes(curves.allocated[peak])} allocated, ${formatBytes(curves.reserved[peak])} reserved` +
      (total > curves.reserved[peak] ? `; at most ${formatBytes(total)} reserved` : ''),
    source: peak > 0 ? lines.at(card.stack[peak - 1]) : '',
    about:
      `${name} on card ${card.index}, ${formatMs(at(events) / 1e6)}, ` +
      `${events.toLocaleString('en-US')} allocator events`,
    notes: [NOTE, ...notes, ...counted(card)],
    total,
    duration: at(events),
    events,
    peak: { event: peak, allocated: curves.allocated[peak], reserved: total, process: null },
    moments: {
      event: positions,
      t: times,
      held: heldAt(positions, curves, releasable, total),
      live: CATEGORIES.map((_, category) =>
        positions.map(position => (category === UNKNOWN ? curves.count[position] : 0))
      ),
      line: positions.map(position => (position > 0 ? lines.index(card.stack[position - 1]) : -1)),
      parts: []
    },
    lives: livesOf(allocations, told, lines),
    pools: [pool],
    texts: lines.texts
  };
}

/** What a snapshot does not say. */
const NOTHING = {
  error: null,
  process_known: false,
  by_event: false,
  categories: [...CATEGORIES],
  bands: [],
  cells: [],
  phases: [],
  steps: [],
  tips: [],
  history: [],
  lines: null,
  growth: null,
  parts: [],
  figures: FIGURES as [string, string][]
};

function* counted({ action, skipped }: ICard): Iterable<string> {
  const refused = action.filter(one => one === OOM).length;
  if (refused > 0) {
    yield `${refused} ${refused === 1 ? 'request was' : 'requests were'} refused: out of memory.`;
  }
  if (skipped > 0) {
    yield `${skipped} entries of a kind that this page does not know were skipped.`;
  }
}

/** Bytes by category at each position; they add up to the total. */
function heldAt(
  positions: number[],
  { allocated, active, requested, reserved }: ICurves,
  releasable: number[],
  total: number
): number[][] {
  const held = CATEGORIES.map(() => new Array<number>(positions.length).fill(0));
  positions.forEach((position, row) => {
    held[UNKNOWN][row] = requested[position];
    held[ROUNDING][row] = allocated[position] - requested[position];
    held[PENDING][row] = active[position] - allocated[position];
    held[CACHED_RELEASABLE][row] = releasable[row];
    held[CACHED_STUCK][row] = reserved[position] - active[position] - releasable[row];
    held[FREE][row] = total - reserved[position];
  });
  return held;
}

/** Indices of those that are told one by one, by birth: see nbmem/analysis/details.py. */
function chosen(a: IAllocations, { allocated }: ICurves, peak: number, events: number): number[] {
  if (a.born.length <= LIVES) {
    return a.born.map((_, i) => i);
  }
  const wanted = new Set<number>();
  const largest = (position: number, most: number): void => {
    const live: number[] = [];
    a.born.forEach((born, i) => born < position && a.freed[i] >= position && live.push(i));
    live.sort((x, y) => a.requested[y] - a.requested[x]);
    live.slice(0, most).forEach(i => wanted.add(i));
  };
  largest(peak, AT_PEAK);
  largest(events, AT_END);
  for (let i = 0; i < SPREAD; i++) {
    largest(Math.floor((i * events) / (SPREAD - 1)), AT_MOMENT);
  }
  const area = (i: number): number =>
    a.requested[i] * (Math.min(a.freed[i], allocated.length - 1) - a.born[i]);
  const byArea = a.born.map((_, i) => i).sort((x, y) => area(y) - area(x));
  for (let i = 0; wanted.size < LIVES; i++) {
    wanted.add(byArea[i]);
  }
  return [...wanted].slice(0, LIVES).sort((x, y) => x - y);
}

function livesOf(a: IAllocations, told: number[], lines: Lines): ILives {
  const column = (values: number[]): number[] => told.map(i => values[i]);
  const none = told.map(() => -1);
  const line = told.map(i => lines.index(a.stack[i]));
  const unnamed = lines.text('unnamed');
  return {
    number: told,
    born: column(a.born),
    freed: column(a.freed),
    category: told.map(() => UNKNOWN),
    requested: column(a.requested),
    block: column(a.block),
    name: none,
    group: line.map(one => (one < 0 ? unnamed : one)),
    shape: none,
    dtype: none,
    born_in: none,
    line,
    stack: told.map(i => lines.stack(a.stack[i])),
    holders: told.map(() => [])
  };
}
