/** The geometry of the line of the last minute: readings as SVG paths in a box of 100 by 100. */

import { WINDOW_MS } from './state.js';

/** Readings hold until the next one: they are pushed when something has changed. */
export interface ICurve {
  /** Milliseconds, ascending. */
  times: number[];
  values: number[];
}

export interface IFrame {
  from: number;
  to: number;
  /** The value at the upper edge. */
  top: number;
}

/** How much of the past is shown, in milliseconds: the least of a few that holds the readings. */
export function windowOf(times: number[]): number {
  const to = times[times.length - 1] ?? 0;
  const first = times.find(time => time >= to - WINDOW_MS) ?? to;
  return [1000, 2000, 5000, 10_000, 20_000, 30_000].find(span => to - first <= span) ?? WINDOW_MS;
}

function x(time: number, frame: IFrame): number {
  const share = (time - frame.from) / Math.max(frame.to - frame.from, 1);
  return Math.round(1e4 * Math.min(Math.max(share, 0), 1)) / 100;
}

function y(value: number, frame: IFrame): number {
  const share = value / Math.max(frame.top, 1);
  return Math.round(1e4 * (1 - Math.min(Math.max(share, 0), 1))) / 100;
}

/** A curve's steps, as an SVG path; empty without a reading. */
export function stepPath(curve: ICurve, frame: IFrame): string {
  let path = '';
  curve.times.forEach((time, i) => {
    const at = y(curve.values[i], frame);
    path += i === 0 ? `M${x(time, frame)} ${at}` : `H${x(time, frame)}V${at}`;
  });
  return path && `${path}H${x(frame.to, frame)}`;
}

/** The area between two curves of the same moments, `lower` null for the ground. */
export function areaPath(curve: ICurve, lower: number[] | null, frame: IFrame): string {
  if (curve.times.length === 0) {
    return '';
  }
  let path = stepPath(curve, frame);
  for (let i = curve.times.length - 1; i >= 0; i--) {
    path += `V${y(lower === null ? 0 : lower[i], frame)}H${x(curve.times[i], frame)}`;
  }
  return `${path}Z`;
}
