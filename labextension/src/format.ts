/** Bytes and times as people read them: as nbmem/core/units.py writes them. */

const KIB = 2 ** 10;
const MIB = 2 ** 20;
const GIB = 2 ** 30;
/** Of a last digit: what would be written as 1,024.0 of a unit is 1 of the next. */
const HALF = 0.05;

/** What is shown where nobody can know an amount. */
export const UNKNOWN = 'unknown';

function fixed(value: number, digits: number): string {
  return value.toLocaleString('en-US', {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits
  });
}

/** Write a byte count with its unit (1024); `signed` writes a plus sign before a positive one. */
export function formatBytes(count: number | null, signed = false): string {
  if (count === null) {
    return UNKNOWN;
  }
  const sign = count < 0 ? '-' : signed && count > 0 ? '+' : '';
  const size = Math.abs(count);
  if (size < KIB) {
    return `${sign}${size} B`;
  }
  if (size < MIB - HALF * KIB) {
    return `${sign}${fixed(size / KIB, 1)} KiB`;
  }
  if (size < GIB - HALF * MIB) {
    return `${sign}${fixed(size / MIB, 1)} MiB`;
  }
  return `${sign}${fixed(size / GIB, 2)} GiB`;
}

/** Write a peak, as `format_peak` does: `≥` where it was read now and then, and more is possible. */
export function formatPeak(
  count: number,
  exact: boolean,
  write: (bytes: number) => string = formatBytes
): string {
  return exact ? write(count) : `≥ ${write(count)}`;
}

/** The same to the byte, for tooltips: `1,234,567 bytes`. */
export function exactBytes(count: number | null): string {
  return count === null ? UNKNOWN : `${count.toLocaleString('en-US')} bytes`;
}

/** Write a duration in ms, s or minutes. */
export function formatMs(ms: number): string {
  if (ms < 1000) {
    return `${fixed(ms, ms < 10 ? 1 : 0)} ms`;
  }
  const seconds = ms / 1000;
  return seconds < 120
    ? `${fixed(seconds, seconds < 10 ? 1 : 0)} s`
    : `${fixed(seconds / 60, 1)} min`;
}

/** A share of a whole: `0.4%`, `12%`. */
export function percent(part: number, whole: number): string {
  if (part <= 0 || whole <= 0) {
    return '0%';
  }
  const share = (100 * part) / whole;
  if (share < 0.05) {
    return '<0.1%';
  }
  return `${fixed(share, share < 10 ? 1 : 0)}%`;
}

/** The first `most` characters of a text that came from elsewhere, on one line. */
export function clipped(text: string, most = 300): string {
  const line = text.replace(/\s+/g, ' ').trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** The smallest of 1, 1.5, 2, 3, 4, 6 ... MiB that holds `count`: the end of an axis. */
export function axisEnd(count: number): number {
  let end = MIB;
  while (end < count) {
    end *= Number.isInteger(Math.log2(end)) ? 3 / 2 : 4 / 3;
  }
  return end;
}

/** Split a sentence at backticks: its pieces, and whether each is a name (`model`). */
export function splitNames(text: string): [string, boolean][] {
  const pieces = text.split('`');
  if (pieces.length % 2 === 0) {
    return [[text, false]]; // one is left over: a text that was cut, or no name
  }
  return pieces
    .map((piece, index): [string, boolean] => [piece, index % 2 === 1])
    .filter(([piece]) => piece !== '');
}
