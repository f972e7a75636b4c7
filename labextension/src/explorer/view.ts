/** What of the timeline is in view: its stretch, its columns of pixels, and the strips above it. */

import { OTHER_TINT, PHASE_TINTS } from '../palette.js';
import { textOf, type IData } from './data.js';

/** From and to, in nanoseconds or events. */
export type Stretch = [number, number];

/** The deepest that can be zoomed in: this part of the whole. */
const DEEPEST = 1 / 20000;

/** A stretch as it can be shown: inside of the whole, and not too narrow. */
export function shown(low: number, high: number, end: number): Stretch {
  const width = Math.min(Math.max(high - low, end * DEEPEST), end);
  const start = Math.min(Math.max(low, 0), end - width);
  return [start, start + width];
}

/** A stretch zoomed in by a factor about a place that stays where it is. */
export function zoomedAbout(at: number, [low, high]: Stretch, factor: number): Stretch {
  return [at - (at - low) / factor, at + (high - at) / factor];
}

/** The last row that is not behind a place. */
export function rowOfX(at: number[], x: number): number {
  const after = at.findIndex(value => value > x);
  return after < 0 ? at.length - 1 : Math.max(after - 1, 0);
}

/**
 * The highest moment of each column of pixels: a peak of a microsecond has a pixel of its own.
 *
 * @param at Where each moment is, ascending.
 * @param heights How high it is.
 * @param width Pixels.
 * @returns Where something else begins, and the row that is shown from there on.
 */
export function columnsIn(
  at: number[],
  heights: number[],
  [low, high]: Stretch,
  width: number
): [number[], number[]] {
  const pixel = (high - low) / width;
  const x: number[] = [];
  const rows: number[] = [];
  let row = rowOfX(at, low);
  row = at[row] > low ? -1 : row;
  for (let column = 0; column < width; column++) {
    let highest = row;
    while (row + 1 < at.length && at[row + 1] < low + (column + 1) * pixel) {
      row += 1;
      highest = highest < 0 || heights[row] > heights[highest] ? row : highest;
    }
    if (highest >= 0 && highest !== rows[rows.length - 1]) {
      x.push(low + column * pixel);
      rows.push(highest);
    }
  }
  x.push(high);
  rows.push(Math.max(row, 0));
  return [x, rows];
}

export interface IStrip {
  left: number;
  right: number;
  row: number;
  text: string;
  tint: string;
}

/** Cells, steps and phases, each in a row of its own if there are any; and how many rows. */
export function stripsOf(
  { bands, cells, texts }: Pick<IData, 'bands' | 'cells' | 'texts'>,
  byEvent: boolean
): { strips: IStrip[]; rows: number } {
  const made: IStrip[] = [];
  const x = (t: number, event: number): number => (byEvent ? event : t);
  const text = (index: number): string => textOf({ texts }, index);
  if (cells.length > 1) {
    for (const [name, t0, t1, first, last] of cells) {
      const [left, right] = [x(t0, first), x(t1, last)];
      made.push({ left, right, row: 0, text: text(name), tint: OTHER_TINT });
    }
  }
  let row = cells.length > 1 ? 1 : 0;
  const steps: IStrip[] = [];
  for (const [t0, took, first, count, , step] of bands) {
    const right = x(t0 + took, first + count);
    const before = steps.at(-1);
    if (step >= 0 && before?.text === `step ${step}`) {
      before.right = right;
    } else if (step >= 0) {
      steps.push({ left: x(t0, first), right, row, text: `step ${step}`, tint: OTHER_TINT });
    }
  }
  made.push(...steps);
  row += steps.length > 0 ? 1 : 0;
  for (const [t0, took, first, count, name] of bands) {
    if (name >= 0) {
      const tint = PHASE_TINTS.get(text(name)) ?? OTHER_TINT;
      const [left, right] = [x(t0, first), x(t0 + took, first + count)];
      made.push({ left, right, row, text: text(name), tint });
    }
  }
  return { strips: made, rows: row + (bands.some(band => band[4] >= 0) ? 1 : 0) };
}
