/** The chart of a fit: drag the value, and read what the program takes there and of what. */

import { exactBytes, formatBytes } from '../format.js';
import { h, sentence, swatch } from './dom.js';
import { paintOf } from './theme.js';

export const FIT_MIME = 'application/vnd.nbmem.fit+json';
/** Raised on the Python side when an older front end could no longer draw it. */
export const FIT_VERSION = 1;

/** Bytes at a value: fixed + each x value + square x value x value. */
export interface IPart {
  key: string | null;
  name: string;
  fixed: number;
  each: number;
  square: number;
}

export interface IRun {
  value: number;
  fits: boolean;
  allocated: number;
  process: number;
  held: Record<string, number>;
}

/** As nbmem/views/fit_data.py writes it. */
export interface IFit {
  version: number;
  title: string;
  variable: string;
  card: string;
  /** Bytes of the card, less the margin. */
  room: number;
  safe: number | null;
  best: number | null;
  limit: number | null;
  step: number;
  sentences: string[];
  /** A picture; `left` and `right` are pixels of the axis, from 0 to `end`. */
  chart: {
    image: string;
    alt: string;
    width: number;
    height: number;
    left: number;
    right: number;
    end: number;
  };
  total: IPart;
  parts: IPart[];
  runs: IRun[];
  /** Captions, each with a table as text. */
  tables: [string, string][];
}

/** The data of a chart, or why it cannot be drawn. */
export function fitOf(output: unknown): IFit {
  const found = (output ?? {}) as Partial<IFit>;
  const known = found.version === FIT_VERSION && Array.isArray(found.runs) && found.total;
  if (!known || !/^data:image\/svg\+xml[,;]/.test(found.chart?.image ?? '')) {
    throw new Error(
      `This fit is of version ${String(found.version).slice(0, 20)} and this nbmem reads ` +
        `${FIT_VERSION}: bring the kernel and JupyterLab to the same nbmem.`
    );
  }
  return found as IFit;
}

/** Bytes of a part at a value; a line through values with jumps may begin below 0. */
export function bytesAt(part: IPart, value: number): number {
  return Math.max(0, Math.round(part.fixed + part.each * value + part.square * value * value));
}

/** What is known of a value: of its own run, or from the values that were tried around it. */
export function verdictAt(fit: IFit, value: number): string {
  const run = fit.runs.find(one => one.value === value);
  const { safe, best, limit, card } = fit;
  if (run !== undefined) {
    const taken = `the process takes ${formatBytes(run.process)}`;
    const luck = run.fits && (safe === null || value > safe) ? ' by luck' : '';
    return run.fits
      ? `fits${luck}: ${taken}`
      : `does not fit: it would take ${formatBytes(run.process)}`;
  }
  if (safe !== null && value <= safe) {
    return 'fits: every value below this answer that was tried does';
  }
  if (best !== null && value <= best) {
    return 'by luck: values around it fit or not, by what lies free in the cache';
  }
  if (limit !== null || best === null) {
    return `does not fit on ${card}`;
  }
  return 'was not tried';
}

const THUMB = 16;

export function fitChart(fit: IFit): HTMLElement {
  const { chart, step, variable } = fit;
  const start = fit.safe ?? fit.best ?? fit.runs[0]?.value ?? step;
  const line = h('div', { class: 'nbx-Fit-line', 'aria-hidden': 'true' });
  const said = h('div', {
    class: 'nbx-Fit-said',
    'data-testid': 'nbx-fit-said',
    'aria-live': 'polite'
  });
  const table = h('table', { class: 'nbx-Oom-table nbx-Fit-table' });
  const share = (pixels: number): number => (100 * pixels) / chart.width;
  const from = share(chart.left);
  const wide = share(chart.right - chart.left);
  const slider = h('input', {
    type: 'range',
    min: 0,
    max: Math.floor(chart.end / step) * step,
    step,
    value: start,
    class: 'nbx-Fit-slider',
    'data-testid': 'nbx-fit-slider',
    'aria-label': variable,
    // The middle of the thumb is at the value: half of it is beyond either end.
    style: `margin-left: calc(${from}% - ${THUMB / 2}px); width: calc(${wide}% + ${THUMB}px)`
  });
  const picture = h(
    'div',
    { class: 'nbx-Fit-picture' },
    h('img', {
      src: chart.image,
      alt: chart.alt,
      width: chart.width,
      height: chart.height,
      draggable: 'false'
    }),
    line
  );
  const show = (): void => {
    const value = Math.max(Number(slider.value), step);
    line.style.left = `${from + (wide * value) / chart.end}%`;
    const verdict = verdictAt(fit, value);
    said.replaceChildren(
      h('strong', {}, `${variable} = ${value.toLocaleString('en-US')}`),
      ` ${verdict}`
    );
    slider.setAttribute('aria-valuetext', `${value}, ${verdict}`);
    table.replaceChildren(...rowsAt(fit, value));
  };
  const move = (event: PointerEvent): void => {
    const box = picture.getBoundingClientRect();
    const at = ((100 * (event.clientX - box.left)) / box.width - from) / wide;
    slider.value = String(Math.round((at * chart.end) / step) * step);
    show();
  };
  picture.addEventListener('pointerdown', event => {
    picture.setPointerCapture(event.pointerId);
    move(event);
  });
  picture.addEventListener('pointermove', event => {
    if (picture.hasPointerCapture(event.pointerId)) {
      move(event);
    }
  });
  slider.addEventListener('input', show);
  show();
  const [verdict, ...rest] = fit.sentences;
  return h(
    'section',
    { class: 'nbx-Fit', 'data-testid': 'nbx-fit', 'aria-label': verdict ?? fit.title },
    h('div', { class: 'nbx-Verdict' }, ...sentence(verdict ?? '')),
    h('div', { class: 'nbx-mod-quiet' }, `${fit.title}, estimated on a virtual card`),
    rest.length === 0
      ? null
      : h('ul', { class: 'nbx-Notes' }, ...rest.map(text => h('li', {}, ...sentence(text)))),
    h(
      'div',
      { class: 'nbx-Fit-columns' },
      h('div', { class: 'nbx-Fit-chart' }, h('div', { class: 'nbx-Fit-drawn' }, picture, slider)),
      h('div', { class: 'nbx-Fit-now' }, said, table)
    ),
    ...fit.tables.map(([title, text]) =>
      h('details', {}, h('summary', {}, title), h('pre', { class: 'nbx-Code' }, text))
    )
  );
}

/** The categories at a value, of its own run where there was one, and their sum. */
function rowsAt(fit: IFit, value: number): HTMLElement[] {
  const run = fit.runs.find(one => one.value === value);
  const sum = run?.allocated ?? bytesAt(fit.total, value);
  const parts = fit.parts
    .map(part => ({
      part,
      bytes: run === undefined ? bytesAt(part, value) : (run.held[part.name] ?? 0)
    }))
    .filter(({ bytes }) => bytes > 0)
    .sort((a, b) => b.bytes - a.bytes);
  const source = run === undefined ? 'by the formula' : 'as it ran';
  return [
    h('caption', {}, `At the peak, ${source}`),
    ...parts.map(({ part, bytes }) =>
      h(
        'tr',
        {},
        h('td', { title: exactBytes(bytes) }, formatBytes(bytes)),
        h('td', { class: 'nbx-Fit-name' }, swatch(paintOf(part.key ?? '')), part.name),
        h(
          'td',
          { class: 'nbx-Fit-bar', 'aria-hidden': 'true' },
          bar(bytes / Math.max(fit.room, 1), part.key)
        )
      )
    ),
    h(
      'tr',
      { class: 'nbx-mod-sum' },
      h('td', { title: exactBytes(sum) }, formatBytes(sum)),
      h('td', {}, `allocated, of ${formatBytes(fit.room)}`),
      h(
        'td',
        { class: 'nbx-Fit-bar', 'aria-hidden': 'true' },
        bar(sum / Math.max(fit.room, 1), null)
      )
    )
  ];
}

function bar(part: number, key: string | null): HTMLElement {
  const paint = key === null ? 'background-color: currentcolor' : paintOf(key);
  return h('span', { style: `width: ${(100 * Math.min(part, 1)).toFixed(1)}%; ${paint}` });
}
