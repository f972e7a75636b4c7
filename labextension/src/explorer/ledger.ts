/** The card at the chosen moment: one bar of all of it, this process drawn large, and the figures. */

import { ACTIVE, PROCESS, RESERVED } from '../categories.js';
import { exactBytes, formatBytes, percent } from '../format.js';
import type { Choice } from './choice.js';
import type { IData } from './data.js';
import { h, swatch } from './dom.js';
import { rowOf, sumAt } from './moments.js';
import { paintOf } from './theme.js';

const SUMS = new Map([
  [ACTIVE, 'active'],
  [RESERVED, 'reserved'],
  [PROCESS, 'process']
]);

export class LedgerView {
  readonly bars = h('div', { class: 'nbx-Bars' });
  readonly table = h('table', { class: 'nbx-Table nbx-Ledger', 'data-testid': 'nbx-ledger' });

  constructor(
    private readonly _data: IData,
    private readonly _choice: Choice
  ) {}

  follow(): void {
    const { moment, span } = this._choice.now;
    const row = rowOf(this._data, moment);
    const before = span === null ? null : rowOf(this._data, span[0]);
    const after = span === null ? null : rowOf(this._data, span[1]);
    this._bars(row);
    this._figures(row, before, after);
  }

  /** What the figures are a part of. */
  private get _whole(): string {
    return this._data.host ? 'machine' : 'card';
  }

  private _bars(row: number): void {
    const { total, process_known } = this._data;
    const mine = process_known ? PROCESS : RESERVED;
    const held = sumAt(this._data, row, mine);
    const who = process_known ? 'this process' : 'reserved by torch';
    this.bars.replaceChildren(
      h('div', { class: 'nbx-Bar-title' }, `The ${this._whole}: ${formatBytes(total)}`),
      this._bar(row, this._data.categories.length, total, 'nbx-Bar'),
      h(
        'div',
        { class: 'nbx-Bar-title' },
        `${who}: ${formatBytes(held)}, ${percent(held, total)} of the ${this._whole}`
      ),
      this._bar(row, mine, Math.max(held, 1), 'nbx-Bar nbx-mod-large')
    );
  }

  private _bar(row: number, count: number, whole: number, name: string): HTMLElement {
    const bar = h('div', { class: name, 'aria-hidden': 'true' });
    for (let category = 0; category < count; category++) {
      const size = this._data.moments.held[category][row];
      if (size > 0) {
        const { key, label } = this._data.categories[category];
        const paint = `${paintOf(key)}; flex-grow: ${size / whole}`;
        bar.append(h('span', { style: paint, title: `${label}: ${formatBytes(size)}` }));
      }
    }
    return bar;
  }

  private _figures(row: number, before: number | null, after: number | null): void {
    const { categories, total } = this._data;
    const held = this._data.moments.held;
    const change = (category: number): string =>
      before === null || after === null
        ? ''
        : formatBytes(held[category][after] - held[category][before], true);
    const body = h('tbody');
    categories.forEach(({ key, label, meaning }, category) => {
      const used = held[category][row] > 0 || (before !== null && change(category) !== '0 B');
      if (used) {
        const size = held[category][row];
        body.append(
          h(
            'tr',
            { title: meaning, 'data-category': key, 'data-bytes': size },
            h('th', { scope: 'row' }, swatch(paintOf(key)), label),
            h('td', { title: exactBytes(size) }, formatBytes(size)),
            h(
              'td',
              { class: 'nbx-mod-quiet' },
              before === null ? percent(size, total) : change(category)
            )
          )
        );
      }
      const sum = SUMS.get(category + 1);
      if (sum !== undefined && !(this._data.host && sum === 'reserved')) {
        const name = this._data.host && sum === 'active' ? 'tensors' : sum;
        const hidden = sum === 'process' && !this._data.process_known;
        const size = sumAt(this._data, row, category + 1);
        body.append(
          h(
            'tr',
            { class: 'nbx-mod-sum', 'data-sum': sum, 'data-bytes': size },
            h('th', { scope: 'row' }, `= ${name}`),
            h('td', { title: exactBytes(size) }, hidden ? 'unknown' : formatBytes(size)),
            h(
              'td',
              { class: 'nbx-mod-quiet' },
              before === null && !hidden ? percent(size, total) : ''
            )
          )
        );
      }
    });
    const last = before === null ? `of the ${this._whole}` : 'over the selection';
    this.table.replaceChildren(
      h('caption', {}, 'Ledger'),
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          h('th', { scope: 'col' }, 'category'),
          h('th', { scope: 'col' }, 'bytes'),
          h('th', { scope: 'col' }, last)
        )
      ),
      body
    );
  }
}
