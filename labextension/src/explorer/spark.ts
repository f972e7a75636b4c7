/** The curve of the allocated bytes in small: a path, without axes. */

import type { IData } from './data.js';
import { h } from './dom.js';
import { allocatedAt, rowOf } from './moments.js';

const COLUMNS = 240;
const HEIGHT = 100;
const SVG = 'http://www.w3.org/2000/svg';

/** Where a moment lies between the first and the last, from 0 to 1. */
export function partOf(data: IData, row: number, byEvent: boolean): number {
  const { event, t } = data.moments;
  const end = byEvent ? data.events : Math.max(data.duration, t[t.length - 1]);
  return Math.min((byEvent ? event[row] : t[row]) / Math.max(end, 1), 1);
}

/** The highest allocated bytes of each column, from 0 to 1; a column without a moment goes on. */
export function columnsOf(data: IData, byEvent: boolean, count = COLUMNS): number[] {
  const most = Math.max(data.peak.allocated, 1);
  const found = new Array<number>(count).fill(-1);
  let last = 0;
  const before = new Array<number>(count).fill(-1);
  data.moments.event.forEach((_, row) => {
    const column = Math.min(Math.floor(partOf(data, row, byEvent) * count), count - 1);
    const part = allocatedAt(data, row) / most;
    found[column] = Math.max(found[column], part);
    before[column] = part; // what goes on in the columns after it
  });
  return found.map((part, column) => {
    const shown = part < 0 ? last : part;
    last = before[column] < 0 ? last : before[column];
    return Math.min(shown, 1);
  });
}

/** A picture of the curve as wide as its place, with a dot at the peak. */
export function sparkOf(data: IData, byEvent: boolean): HTMLElement {
  const columns = columnsOf(data, byEvent);
  const steps = columns.map((part, i) => `L${i} ${at(part)}L${i + 1} ${at(part)}`).join('');
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', `0 0 ${columns.length} ${HEIGHT}`);
  svg.setAttribute('preserveAspectRatio', 'none');
  const path = document.createElementNS(SVG, 'path');
  path.setAttribute('d', `M0 ${HEIGHT}${steps}L${columns.length} ${HEIGHT}`);
  svg.append(path);
  const peak = rowOf(data, data.peak.event);
  const left = (100 * partOf(data, peak, byEvent)).toFixed(2);
  return h(
    'div',
    { class: 'nbx-Spark', 'aria-hidden': 'true' },
    svg,
    h('span', { class: 'nbx-Spark-peak', style: `left: ${left}%` })
  );
}

function at(part: number): string {
  return (HEIGHT * (1 - part)).toFixed(1);
}
