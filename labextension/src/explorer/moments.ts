/** What the card held at a moment: sums, who held it, and the moment itself in words. */

import { ACTIVE, LIVE, PENDING, RESERVED } from '../categories.js';
import { formatBytes } from '../format.js';
import { textOf, type IData } from './data.js';

/** The row of the moment that is nearest to an event. */
export function rowOf(data: IData, event: number): number {
  const events = data.moments.event;
  let low = 0;
  let high = events.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (events[middle] < event) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low > 0 && event - events[low - 1] < events[low] - event ? low - 1 : low;
}

/** Bytes of the first `count` categories at a moment. */
export function sumAt(data: IData, row: number, count: number): number {
  let sum = 0;
  for (let category = 0; category < count; category++) {
    sum += data.moments.held[category][row];
  }
  return sum;
}

export function allocatedAt(data: IData, row: number): number {
  return sumAt(data, row, ACTIVE) - data.moments.held[PENDING][row];
}

/** The row with the most allocated bytes between two events. */
export function peakBetween(data: IData, first: number, last: number): number {
  let best = rowOf(data, first);
  data.moments.event.forEach((event, row) => {
    if (event >= first && event <= last && allocatedAt(data, row) > allocatedAt(data, best)) {
      best = row;
    }
  });
  return best;
}

/** `backward, step 2`, or nothing between phases. */
export function phaseAt(data: IData, event: number): string {
  const band = data.bands.find(([, , first, count]) => first < event && event <= first + count);
  if (band === undefined) {
    return '';
  }
  const name = textOf(data, band[4]);
  const step = band[5] < 0 ? '' : `step ${band[5]}`;
  return [name, step].filter(Boolean).join(', ');
}

/** Nanoseconds as a person reads them, down to microseconds. */
export function formatTime(ns: number): string {
  const [size, unit] = ns < 1e6 ? [1e3, 'us'] : ns < 1e9 ? [1e6, 'ms'] : [1e9, 's'];
  return `${(ns / size).toFixed(ns < 1e6 ? 0 : ns < 1e9 ? 1 : 2)} ${unit}`;
}

/** A moment in words: when, in which phase, by which line. */
export function inWords(data: IData, row: number): string {
  const { event, t, line } = data.moments;
  const parts = [
    formatTime(t[row]),
    `event ${event[row].toLocaleString('en-US')}`,
    phaseAt(data, event[row]),
    textOf(data, line[row])
  ];
  return parts.filter(Boolean).join(' · ');
}

/** A tensor, a group of them, or those too small to be told one by one. */
export interface IHolder {
  label: string;
  bytes: number;
  category: number;
  /** Index of the allocation in the data; null for a group and for the rest. */
  life: number | null;
  parts: IHolder[];
}

/** Which allocations live at a moment: indices into the data's lives, the largest first. */
export function livesAt(data: IData, row: number): number[] {
  const { born, freed, requested } = data.lives;
  const event = data.moments.event[row];
  const found: number[] = [];
  born.forEach((first, life) => {
    if (first < event && freed[life] >= event) {
      found.push(life);
    }
  });
  return found.sort((a, b) => requested[b] - requested[a]);
}

/** What a row of the largest is called. */
export function nameOf(data: IData, life: number): string {
  return textOf(data, data.lives.name[life]) || 'unnamed';
}

/** Bytes and number of the allocations of a category that are not told one by one. */
export function restAt(
  data: IData,
  row: number,
  category: number,
  told: number[]
): { bytes: number; count: number | null } {
  const known = told.reduce((sum, life) => sum + data.lives.requested[life], 0);
  const live = data.moments.live[category];
  return {
    bytes: data.moments.held[category][row] - known,
    count: live === undefined ? null : live[row] - told.length
  };
}

/** Category, then module or variable, then tensor; each level adds up to the one above. */
export function holdersAt(data: IData, row: number): IHolder[] {
  const told = new Map<number, number[]>();
  for (const life of livesAt(data, row)) {
    const category = data.lives.category[life];
    told.set(category, [...(told.get(category) ?? []), life]);
  }
  const holders: IHolder[] = [];
  for (let category = 0; category < RESERVED; category++) {
    const bytes = data.moments.held[category][row];
    if (bytes === 0) {
      continue;
    }
    const label = data.categories[category].label;
    const parts = category < LIVE ? groupsOf(data, row, category, told.get(category) ?? []) : [];
    holders.push({ label, bytes, category, life: null, parts });
  }
  return holders;
}

function groupsOf(data: IData, row: number, category: number, told: number[]): IHolder[] {
  const groups = new Map<string, IHolder>();
  for (const life of told) {
    const label = textOf(data, data.lives.group[life]);
    const group = groups.get(label) ?? { label, bytes: 0, category, life: null, parts: [] };
    const bytes = data.lives.requested[life];
    group.bytes += bytes;
    group.parts.push({ label: leafOf(data, life), bytes, category, life, parts: [] });
    groups.set(label, group);
  }
  const sorted = [...groups.values()].sort((a, b) => b.bytes - a.bytes);
  const rest = restAt(data, row, category, told);
  if (rest.bytes > 0) {
    const count = rest.count === null ? 'others' : `${rest.count.toLocaleString('en-US')} smaller`;
    sorted.push({ label: count, bytes: rest.bytes, category, life: null, parts: [] });
  }
  return sorted;
}

function leafOf(data: IData, life: number): string {
  const shape = textOf(data, data.lives.shape[life]);
  const name = textOf(data, data.lives.name[life]);
  const group = textOf(data, data.lives.group[life]);
  const short = name.startsWith(`${group}.`)
    ? name.slice(group.length + 1)
    : name.replace(new RegExp(`^saved (by|after) `), 'saved ').replace(`saved ${group}`, 'saved');
  return [short || textOf(data, data.lives.line[life]) || 'unnamed', shape]
    .filter(Boolean)
    .join(' ');
}

/** What stands beside a box or under the pointer. */
export function holderInWords(data: IData, holder: IHolder): string {
  const where = data.categories[holder.category].label;
  const kind = holder.label === where ? '' : `, ${where}`;
  return `${holder.label}: ${formatBytes(holder.bytes)}${kind}`;
}
