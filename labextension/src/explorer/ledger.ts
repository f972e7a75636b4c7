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
    const change = (column: number[]): string =>
      before === null || after === null ? '' : formatBytes(column[after] - column[before], true);
    const beside = (column: number[]): string =>
      before === null ? percent(column[row], total) : change(column);
    const body = h('tbody');
    categories.forEach(({ key, label, meaning }, category) => {
      const size = held[category][row];
      if (size > 0 || (before !== null && change(held[category]) !== '0 B')) {
        body.append(
          line(
            { title: meaning, 'data-category': key, 'data-bytes': size },
            [swatch(paintOf(key)), label],
            size,
            beside(held[category])
          )
        );
      }
      const sum = SUMS.get(category + 1);
      if (sum !== undefined && !(this._data.host && sum === 'reserved')) {
        const name = this._data.host && sum === 'active' ? 'tensors' : sum;
        const hidden = sum === 'process' && !this._data.process_known;
        const size = sumAt(this._data, row, category + 1);
        body.append(
          line(
            { class: 'nbx-mod-sum', 'data-sum': sum, 'data-bytes': size },
            [`= ${name}`],
            hidden ? null : size,
            before === null && !hidden ? percent(size, total) : ''
          )
        );
      }
      this._data.parts.forEach(({ key, of, label, meaning }, i) => {
        const column = this._data.moments.parts[i] ?? [];
        if (of === (sum ?? categories[category].key) && hasAny(column, row, before, after)) {
          body.append(
            line(
              {
                class: 'nbx-mod-part',
                title: meaning,
                'data-part': key,
                'data-bytes': column[row]
              },
              [label],
              column[row],
              beside(column)
            )
          );
        }
      });
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

/** A line of the table; null for bytes that nobody knows. */
function line(
  attributes: Record<string, string | number>,
  name: (Node | string)[],
  size: number | null,
  beside: string
): HTMLElement {
  return h(
    'tr',
    attributes,
    h('th', { scope: 'row' }, ...name),
    h('td', { title: exactBytes(size) }, size === null ? 'unknown' : formatBytes(size)),
    h('td', { class: 'nbx-mod-quiet' }, beside)
  );
}

/** Whether a part has bytes at the moment, or at an end of the selection, and is known at all three. */
function hasAny(column: number[], ...rows: (number | null)[]): boolean {
  const sizes = rows.flatMap(row => (row === null ? [] : [column[row] ?? -1]));
  return sizes.every(size => size >= 0) && sizes.some(size => size > 0);
}
