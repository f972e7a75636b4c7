/** Round ticks for bytes, times and counts. */

export interface ITick {
  at: number;
  text: string;
}

type Unit = readonly [number, string];

const BYTES: readonly Unit[] = [
  [2 ** 30, 'GiB'],
  [2 ** 20, 'MiB'],
  [2 ** 10, 'KiB'],
  [1, 'B']
];
const TIMES: readonly Unit[] = [
  [60e9, 'min'],
  [1e9, 's'],
  [1e6, 'ms'],
  [1e3, 'us']
];

export function byteTicks(low: number, high: number, most = 5): ITick[] {
  return ticks(low, high, most, unitOf(BYTES, high));
}

export function timeTicks(low: number, high: number, most = 8): ITick[] {
  return ticks(low, high, most, unitOf(TIMES, high));
}

export function countTicks(low: number, high: number, most = 8): ITick[] {
  return ticks(low, high, most, [1, '']);
}

/** So many ticks with a text have room in a width in pixels. */
export function roomFor(width: number, each = 76): number {
  return Math.min(Math.max(Math.floor(width / each), 1), 8);
}

function unitOf(units: readonly Unit[], high: number): Unit {
  return units.find(([size]) => high >= size) ?? units[units.length - 1];
}

function ticks(low: number, high: number, most: number, [size, unit]: Unit): ITick[] {
  if (!(high > low)) {
    return [];
  }
  const least = Math.max((high - low) / size / most, unit === '' ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = ([1, 2, 2.5, 5, 10].find(f => f * power >= least * (1 - 1e-9)) ?? 10) * power;
  const found: ITick[] = [];
  for (let i = Math.ceil(low / size / step - 1e-9); i * step * size <= high * (1 + 1e-9); i++) {
    const value = Number((i * step).toPrecision(12));
    const text = value.toLocaleString('en-US', { maximumFractionDigits: 6 });
    found.push({ at: value * size, text: `${text} ${unit}`.trim() });
  }
  return found;
}
