/** The phases: a table, the steps side by side, and how they grow. */

import { ACTIVE } from '../categories.js';
import { formatBytes } from '../format.js';
import type { Choice } from './choice.js';
import { textOf, type IData, type IPhase } from './data.js';
import { button, h } from './dom.js';
import { phaseIn, type Picture, type Pictures } from './figures.js';
import { rove } from './keys.js';
import { formatTime, peakBetween } from './moments.js';
import { colourOf, type ITheme } from './theme.js';
import { byteTicks, countTicks } from './ticks.js';

export class Phases {
  readonly table = h('table', { class: 'nbx-Table', 'data-testid': 'nbx-phases' });

  private constructor(
    private readonly _data: IData,
    private readonly _choice: Choice,
    private readonly _bars: Picture,
    private readonly _growth: Picture | null
  ) {
    this._drawBars();
    _bars.onResize(() => this._name());
    this._drawGrowth();
    this.follow();
  }

  static async draw(
    pictures: Pictures,
    data: IData,
    choice: Choice,
    bars: HTMLElement,
    growth: HTMLElement | null
  ): Promise<Phases> {
    return new Phases(
      data,
      choice,
      await pictures.draw('phases', bars),
      growth === null ? null : await pictures.draw('growth', growth)
    );
  }

  follow(): void {
    const { span } = this._choice.now;
    const inside = (phase: IPhase): boolean =>
      span === null || (phase.last > span[0] && phase.first < span[1]);
    const head = ['step', 'phase', 'time', 'took', 'peak', 'left', 'reserved'];
    const body = h('tbody');
    let step: number | null | undefined;
    for (const phase of this._data.phases.filter(inside)) {
      if (phase.left_out !== '') {
        body.append(
          h('tr', {}, h('td', { colspan: head.length, class: 'nbx-mod-quiet' }, phase.left_out))
        );
      }
      body.append(this._line(phase, phase.step !== step));
      step = phase.step;
    }
    this.table.replaceChildren(
      h('caption', {}, span === null ? 'Phases' : 'Phases in the selection'),
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          ...head.map(name =>
            h('th', { scope: 'col', class: name === 'phase' ? 'nbx-mod-text' : null }, name)
          )
        )
      ),
      body
    );
    rove(this.table);
  }

  wear(theme: ITheme): void {
    this._bars.wear(theme, ['below', 'left']);
    this._bars.set('left grid', { grid_line_color: theme.line });
    this._bars.glyph('left', { line_color: theme.ink });
    this._ink = theme.quiet;
    this._name();
    if (this._growth !== null) {
      this._growth.wear(theme, ['below', 'left']);
      this._growth.set('left grid', { grid_line_color: theme.line });
      for (const [name, colour] of [
        ['peak', theme.ink],
        ['left', theme.quiet]
      ]) {
        this._growth.glyph(name, { line_color: colour });
        this._growth.glyph(`${name} dots`, { fill_color: colour });
      }
    }
  }

  private _line(phase: IPhase, newStep: boolean): HTMLElement {
    const peak = this._data.peak.event;
    const name = textOf(this._data, phase.name);
    const go = button(name, () => this._go(phase), { class: 'nbx-Button nbx-Link', title: name });
    const indent = phase.depth === 0 ? null : '\u00a0\u00a0\u00a0';
    const here = phase.first < peak && peak <= phase.last && phase.depth === 0;
    return h(
      'tr',
      {
        class: [newStep ? 'nbx-mod-ruled' : '', here ? 'nbx-mod-peak' : ''].join(' ').trim() || null
      },
      h('td', {}, newStep && phase.step !== null ? String(phase.step) : ''),
      h('th', { scope: 'row' }, indent, go),
      h('td', {}, formatTime(phase.t1 - phase.t0)),
      h('td', {}, formatBytes(phase.after - phase.before, true)),
      h('td', {}, formatBytes(phase.peak)),
      h('td', {}, formatBytes(phase.after)),
      h('td', {}, formatBytes(phase.reserved))
    );
  }

  private _go(phase: IPhase): void {
    const row = peakBetween(this._data, phase.first, phase.last);
    this._choice.set({ moment: this._data.moments.event[row] });
  }

  private _drawBars(): void {
    const shown = this._data.phases.filter(phase => phase.held !== undefined);
    const columns: Record<string, number[]> = { x: [], y0: [] };
    for (let category = 0; category < ACTIVE; category++) {
      columns[`y${category + 1}`] = [];
    }
    const ticks: { at: number; text: string }[] = [];
    let x = 0;
    let step: number | null | undefined;
    let from = 0;
    let top = 1;
    const steps: { at: number; text: string }[] = [];
    shown.forEach((phase, i) => {
      if (i > 0 && phase.step !== step) {
        steps.push({ at: (from + x - 1) / 2, text: `step ${step}` });
        x += 0.7;
        from = x;
      }
      step = phase.step;
      const held = new Map(phase.held);
      columns.x.push(x);
      columns.y0.push(0);
      let sum = 0;
      for (let category = 0; category < ACTIVE; category++) {
        sum += held.get(category) ?? 0;
        columns[`y${category + 1}`].push(sum);
      }
      top = Math.max(top, sum);
      ticks.push({ at: x, text: textOf(this._data, phase.name) });
      x += 1;
    });
    if (shown.length > 0) {
      steps.push({ at: (from + x - 1) / 2, text: `step ${step}` });
    }
    this._names = ticks;
    this._width = Math.max(x, 1);
    this._bars.x(-0.6, this._width - 0.4);
    this._bars.y(-0.09 * top, top * 1.06);
    this._bars.axis('below', steps);
    this._bars.axis('left', byteTicks(0, top));
    for (let category = 0; category < ACTIVE; category++) {
      const { key } = this._data.categories[category];
      this._bars.glyph(`bar ${key}`, { fill_color: colourOf(key) });
    }
    this._bars.fill('bars', columns);
    this._bars.fill('left', {
      x0: columns.x.map(at => at - 0.41),
      x1: columns.x.map(at => at + 0.41),
      y: shown.map(phase => phase.after)
    });
    this._low = -0.045 * top;
    this._name();
  }

  private _name(): void {
    const room = this._bars.frame.width / this._width + 6;
    this._bars.fill('names', {
      x: this._names.map(({ at }) => at),
      y: this._names.map(() => this._low),
      text: this._names.map(({ text }) => phaseIn(text, room)),
      colour: this._names.map(() => this._ink)
    });
  }

  private _drawGrowth(): void {
    const { steps } = this._data;
    if (this._growth === null || steps.length === 0) {
      return;
    }
    const x = steps.map(([step]) => step);
    const [low, high] = [x[0], x[x.length - 1]];
    const top = Math.max(...steps.map(([, , peak]) => peak), 1);
    this._growth.x(low - 0.5, high + 0.5);
    this._growth.y(0, top * 1.1);
    this._growth.axis('below', countTicks(low, high));
    this._growth.axis('left', byteTicks(0, top, 3));
    this._growth.fill('steps', {
      x,
      peak: steps.map(([, , peak]) => peak),
      left: steps.map(([, , , left]) => left)
    });
  }

  private _names: { at: number; text: string }[] = [];
  private _width = 1;
  private _low = 0;
  private _ink = '#808080';
}

/** What grew from step to step, in a sentence; empty for fewer than three steps. */
export function growthInWords(data: IData): string {
  const steps = data.steps;
  if (steps.length < 3) {
    return '';
  }
  const [first, second, last] = [steps[0], steps[1], steps[steps.length - 1]];
  const before = data.phases.find(phase => phase.step === first[0])?.before ?? 0;
  const built = `Step ${first[0]} leaves ${formatBytes(first[3] - before, true)}`;
  const grown = (last[3] - second[3]) / Math.max(last[0] - second[0], 1);
  return Math.abs(grown) < 1
    ? `${built}; from step ${second[0]} on nothing grows.`
    : `${built}; from step ${second[0]} on each one leaves ${formatBytes(Math.round(grown), true)}.`;
}
