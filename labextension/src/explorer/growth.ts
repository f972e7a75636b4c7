/** What grows: each step's bytes by holder as stacked bars, and the line that adds to each. */

import { formatBytes } from '../format.js';
import type { Choice } from './choice.js';
import type { IData, IGrowingHolder, IGrowth } from './data.js';
import { button, h, swatch } from './dom.js';
import { rove } from './keys.js';
import { paintOf } from './theme.js';
import { byteTicks } from './ticks.js';
import type { IActions } from './tips.js';

/** Opacity of the holders of one category, in turn: they have one colour. */
const SHADES = [1, 0.62, 0.36];
/** Numbers of steps below the bars, at most. */
const MOST_NUMBERS = 8;

/** A name without the marks of code. */
function plain(name: string): string {
  return name.replaceAll('`', '');
}

/** The bytes that the holders keep at the end of a step. */
export function keptAt({ holders }: IGrowth, step: number): number {
  return holders.reduce((sum, { held }) => sum + held[step], 0);
}

/** The step that a moment belongs to: the first that ends at it or behind it. */
export function stepOf({ events }: IGrowth, moment: number): number {
  const at = events.findIndex(end => end >= moment);
  return at < 0 ? events.length - 1 : at;
}

/** A step in words: what is kept, and by how much each holder has grown since the one before. */
export function stepInWords(growth: IGrowth, step: number): string {
  const parts = growth.holders.map(({ name, held }) => {
    const more = step > 0 ? `, ${formatBytes(held[step] - held[step - 1], true)}` : '';
    return `${plain(name)} ${formatBytes(held[step])}${more}`;
  });
  const all = `${formatBytes(growth.allocated[step])} allocated`;
  return [`after step ${growth.steps[step]}`, ...parts, all].join(' · ');
}

/** Which steps have their number below the bar: evenly, the first among them. */
export function numbered(count: number, most = MOST_NUMBERS): boolean[] {
  const each = Math.ceil(count / most);
  return Array.from({ length: count }, (_, step) => step % each === 0);
}

/** The shade of each holder: the second of a category is lighter than the first. */
export function shadesOf(holders: readonly Pick<IGrowingHolder, 'category'>[]): number[] {
  return holders.map(({ category }, at) => {
    const before = holders.slice(0, at).filter(other => other.category === category).length;
    return SHADES[before % SHADES.length];
  });
}

export class Growth {
  readonly node = h('div', { 'data-testid': 'nbx-growth' });

  constructor(
    private readonly _data: IData,
    private readonly _growth: IGrowth,
    private readonly _choice: Choice,
    actions: IActions
  ) {
    this._paints = this._painted();
    this.node.append(
      h('div', { class: 'nbx-Title' }, 'Kept at the end of each step, by what keeps it'),
      this._chart(),
      this._said,
      h('div', { class: 'nbx-Scroll' }, this._table(actions)),
      h('p', { class: 'nbx-Words' }, _growth.words)
    );
    this.follow();
  }

  wear(): void {
    // Its colours are the page's own.
  }

  follow(): void {
    const step = stepOf(this._growth, this._choice.now.moment);
    this._bars.forEach((bar, at) => bar.setAttribute('aria-pressed', String(at === step)));
    this._said.textContent = stepInWords(this._growth, step);
  }

  private _chart(): HTMLElement {
    const growth = this._growth;
    const { steps } = growth;
    const top = Math.max(...steps.map((_, step) => keptAt(growth, step)), 1) * 1.04;
    const share = (bytes: number): string => `${((100 * bytes) / top).toFixed(3)}%`;
    const shown = numbered(steps.length);
    this._bars = steps.map((number, step) =>
      button('', () => this._choice.set({ moment: growth.events[step], span: null }), {
        class: 'nbx-Grow-step',
        'aria-label': stepInWords(growth, step),
        title: stepInWords(growth, step),
        'data-step': number,
        'data-bytes': keptAt(growth, step)
      })
    );
    this._bars.forEach((bar, step) => {
      // From the bottom: the steepest first.
      growth.holders.forEach(({ held }, at) =>
        bar.append(
          h('span', {
            class: 'nbx-Grow-part',
            style: `height: ${share(held[step])}; ${this._paints[at]}`,
            'data-bytes': held[step]
          })
        )
      );
      if (shown[step]) {
        bar.append(h('span', { class: 'nbx-Grow-number' }, String(steps[step])));
      }
    });
    const bars = h(
      'div',
      { class: 'nbx-Grow-bars', role: 'group', 'aria-label': 'The steps' },
      ...this._bars
    );
    rove(bars);
    const lines = byteTicks(0, top, 4).map(({ at, text }) =>
      h('div', { class: 'nbx-Grow-line', style: `bottom: ${share(at)}` }, h('span', {}, text))
    );
    return h('div', { class: 'nbx-Grow' }, ...lines, bars);
  }

  private _table(actions: IActions): HTMLElement {
    const { steps, holders } = this._growth;
    const last = steps.length - 1;
    const head = ['holder', 'per step', `after step ${steps[last]}`];
    // The line stands below its holder: side by side they have no room in a narrow output.
    const rows = holders.flatMap((holder, at) => [
      h(
        'tr',
        {},
        h(
          'th',
          { scope: 'row', title: holder.words },
          swatch(this._paints[at]),
          h('b', {}, plain(holder.name))
        ),
        h('td', { 'data-bytes': holder.slope }, formatBytes(holder.slope, true)),
        h('td', { 'data-bytes': holder.held[last] }, formatBytes(holder.held[last]))
      ),
      h(
        'tr',
        { class: 'nbx-Grow-source' },
        h(
          'td',
          { colspan: head.length },
          placeOf(holder, actions),
          ' ',
          holder.code === '' ? null : h('code', {}, holder.code)
        )
      )
    ]);
    const body = h('tbody', {}, ...rows);
    rove(body);
    return h(
      'table',
      { class: 'nbx-Table nbx-Grow-table' },
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          ...head.map((text, at) =>
            h('th', { scope: 'col', class: at === 0 ? 'nbx-mod-text' : null }, text)
          )
        )
      ),
      body
    );
  }

  private _painted(): string[] {
    const shades = shadesOf(this._growth.holders);
    return this._growth.holders.map(
      ({ category }, at) =>
        `${paintOf(this._data.categories[category].key)}; opacity: ${shades[at]}`
    );
  }

  private readonly _paints: string[];
  private _bars: HTMLElement[] = [];
  private readonly _said = h('p', {
    class: 'nbx-Words',
    role: 'status',
    'data-testid': 'nbx-grown'
  });
}

/** The line: a button that goes there where the front end can. */
function placeOf({ line, number }: IGrowingHolder, { goTo }: IActions): Node | string {
  const known = number !== null && /^In \[\d+\], line \d+$/.test(line);
  return known && goTo !== null
    ? button(line, () => goTo(line), {
        class: 'nbx-Button nbx-Link',
        'aria-label': `Go to ${line}`
      })
    : line;
}
