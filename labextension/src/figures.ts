/** Which bytes of a card belong to what: the parts of its bar and the figures beside it. */

import { ACTIVE, CATEGORIES, PENDING, PROCESS } from './categories.js';
import type { ICardSample, IHostSample, IRankNow } from './messages.js';

/** A part of a whole card; `key` chooses its colour. */
export interface IPart {
  key: string;
  label: string;
  bytes: number;
}

/** Bytes by category: key, label, bytes. */
export type Ledger = [string, string, number][];

const MOST_PARTS = 32;

/** The part of a ledger that is allocated: what lies in live blocks, and their rounding. */
export function allocatedPart(ledger: Ledger): Ledger {
  return ledger.filter(([key]) => !NOT_ALLOCATED.has(key));
}

const NOT_ALLOCATED: ReadonlySet<string> = new Set(CATEGORIES.slice(PENDING).map(({ key }) => key));

function bytesOf(named: Ledger): number {
  return named.reduce((sum, [, , bytes]) => sum + bytes, 0);
}

/**
 * The whole card, from the bottom of the stack: what is allocated (by category where that is known),
 * then what the allocator keeps, other frameworks, the process's own rest, other processes, what the driver keeps, free. What the
 * driver does not say is not a part. `named` are the categories of what is allocated, used if they add up to it.
 */
export function partsOf(card: ICardSample, named = card.by_category): IPart[] {
  const parts: IPart[] = [];
  const add = (key: string, label: string, bytes: number): void => {
    if (bytes > 0) {
      parts.push({ key, label, bytes });
    }
  };
  splitOf(named, card.allocated, 'allocated').forEach(part => add(...part));
  add('cached', 'cached', card.reserved - card.allocated);
  const taken = card.total !== null && card.free !== null ? card.total - card.free : null;
  if (card.process !== null) {
    const beside = card.process - card.reserved - bytesOf(card.frameworks);
    if (beside >= 0) {
      card.frameworks.slice(0, MOST_PARTS).forEach(([key, label, bytes]) => add(key, label, bytes));
    }
    add('context', 'context and libraries', beside >= 0 ? beside : card.process - card.reserved);
    if (taken !== null) {
      add('other_processes', 'other processes', taken - card.process - card.driver);
    }
  } else if (taken !== null) {
    add('context', 'context and others', taken - card.reserved - card.driver);
  }
  add('driver', 'kept by the driver', card.driver);
  add('free', 'free', card.free ?? 0);
  return parts;
}

/** Some bytes by category, where those add up to them; else in one part. */
function splitOf(named: Ledger, bytes: number, label: string): Ledger {
  return bytesOf(named) === bytes ? named.slice(0, MOST_PARTS) : [['allocated', label, bytes]];
}

/** What a rank holds: by category where that is known, and what its allocator keeps. */
export function partsOfRank(rank: IRankNow): IPart[] {
  const allocated = rank.allocated ?? 0;
  const named = splitOf(rank.by_category, allocated, 'allocated');
  const cached: Ledger = [['cached', 'cached', (rank.reserved ?? allocated) - allocated]];
  return [...named, ...cached]
    .map(([key, label, bytes]) => ({ key, label, bytes }))
    .filter(part => part.bytes > 0);
}

/** The whole of the host's memory: this process (by category where that is known), others, free. */
export function partsOfHost(host: IHostSample): IPart[] {
  const named = splitOf(host.by_category, host.process, 'this process');
  const others: Ledger =
    host.free === null
      ? []
      : [
          ['other_processes', 'other processes', host.total - host.free - host.process],
          ['free', 'available', host.free]
        ];
  return [...named, ...others]
    .map(([key, label, bytes]) => ({ key, label, bytes }))
    .filter(part => part.bytes > 0);
}

/** A line of a table: a part, a sum of the lines above, or what of the line above lies somewhere. */
export interface ILine extends IPart {
  kind: 'part' | 'sum' | 'of';
}

const BESIDE_PROCESS: ReadonlySet<string> = new Set(
  CATEGORIES.slice(PROCESS).map(({ key }) => key)
);
const TENSORS: ReadonlySet<string> = new Set(CATEGORIES.slice(0, ACTIVE).map(({ key }) => key));

/**
 * The parts of the host's memory, and below each sum what it is of, as the report has them:
 * `of` holds what of the tensors, of the process and of the available bytes is shared, of files
 * and page cache. A card has none of it, and no sums.
 */
export function linesOf(parts: IPart[], of: Ledger): ILine[] {
  const lines = parts.map((part): ILine => ({ ...part, kind: 'part' }));
  const below = (place: number, sum: string | null, ...keys: string[]): void => {
    const found = of
      .filter(([key]) => keys.includes(key))
      .map(([key, label, bytes]): ILine => ({ key, label, bytes, kind: 'of' }));
    const above = lines.slice(0, place);
    const bytes = above.reduce((all, line) => all + line.bytes, 0);
    const head: ILine[] =
      sum === null || above.length < 2 ? [] : [{ key: sum, label: `= ${sum}`, bytes, kind: 'sum' }];
    if (found.length > 0 && place > 0) {
      lines.splice(place, 0, ...head, ...found);
    }
  };
  const processes = parts.filter(({ key }) => !BESIDE_PROCESS.has(key)).length;
  const tensors = parts.filter(({ key }) => TENSORS.has(key)).length;
  below(parts.length, null, 'cache'); // the last first: places before it stay
  below(processes, 'process', 'files', 'shared');
  below(tensors, 'tensors', 'tensors');
  return lines;
}

/** What a line draws of one reading; null for a curve that there is not. */
export interface IDrawn {
  allocated: number;
  peak: number;
  reserved: number | null;
  process: number | null;
  by_category: Ledger;
}

/** The host's memory as a line draws it: the process is what is stacked. */
export function drawnOf(host: IHostSample): IDrawn {
  const { process, peak, by_category } = host;
  return { allocated: process, peak, reserved: null, process: null, by_category };
}

/** One series of the line, at the same moments as all others. */
export interface ISeries {
  key: string;
  label: string;
  values: number[];
}

const ORDER = CATEGORIES.map(({ key }) => key);

/** Where a category is stacked; what has no name yet lies on top. */
function rank(key: string): number {
  const at = ORDER.indexOf(key);
  return at < 0 ? ORDER.length : at;
}

/** The stacked series of a card's samples. */
export function seriesOf(cards: Pick<IDrawn, 'allocated' | 'by_category'>[]): ISeries[] {
  const labels = new Map<string, string>();
  for (const card of cards) {
    for (const [key, label] of card.by_category.slice(0, MOST_PARTS)) {
      labels.set(key, labels.get(key) ?? label);
    }
  }
  const series = [...labels]
    .sort(([a], [b]) => rank(a) - rank(b))
    .map(([key, label]) => ({ key, label, values: [] as number[] }));
  const rest: ISeries = { key: 'allocated', label: 'allocated', values: [] };
  for (const card of cards) {
    const known = new Map(card.by_category.map(([key, , bytes]) => [key, bytes]));
    let left = card.allocated;
    for (const one of series) {
      const bytes = known.get(one.key) ?? 0;
      one.values.push(bytes);
      left -= bytes;
    }
    rest.values.push(Math.max(left, 0));
  }
  return [...series, rest].filter(one => one.values.some(bytes => bytes > 0));
}
