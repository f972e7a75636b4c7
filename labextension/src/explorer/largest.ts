/** The table of the largest: sorted by any column, filtered by a word. */

import { exactBytes, formatBytes } from '../format.js';
import type { Choice } from './choice.js';
import { textOf, type IData } from './data.js';
import { button, h, swatch } from './dom.js';
import { rove } from './keys.js';
import { livesAt, nameOf, restAt, rowOf } from './moments.js';
import { paintOf } from './theme.js';

/** Rows that are shown at first, and that each click adds. */
const PAGE = 60;

type Column = 'requested' | 'category' | 'name' | 'shape' | 'dtype' | 'born_in' | 'line';

const COLUMNS: readonly (readonly [Column, string])[] = [
  ['requested', 'requested'],
  ['category', 'category'],
  ['name', 'what'],
  ['shape', 'shape'],
  ['dtype', 'dtype'],
  ['born_in', 'born in'],
  ['line', 'line']
];

export class Largest {
  readonly node = h('div', { class: 'nbx-Largest' });

  constructor(
    private readonly _data: IData,
    private readonly _choice: Choice
  ) {
    this._filter = h('input', {
      type: 'search',
      class: 'nbx-Filter',
      placeholder: 'filter: a name, a category, a line',
      'aria-label': 'Filter the largest tensors'
    });
    this._filter.addEventListener('input', () => this.follow());
    this._more = button('', () => {
      this._most += PAGE;
      this.follow();
    });
    this.node.append(
      h(
        'div',
        { class: 'nbx-Largest-head' },
        h('div', { class: 'nbx-Title' }, 'Largest tensors'),
        this._filter
      ),
      h(
        'div',
        { class: 'nbx-Scroll', tabindex: '0', role: 'region', 'aria-label': 'Largest tensors' },
        this._table
      ),
      h('div', { class: 'nbx-Largest-foot' }, this._more, this._rest)
    );
  }

  follow(): void {
    const { moment, tensor } = this._choice.now;
    const row = rowOf(this._data, moment);
    const all = livesAt(this._data, row);
    const word = this._filter.value.trim().toLowerCase();
    const found =
      word === '' ? all : all.filter(life => this._says(life).toLowerCase().includes(word));
    const sorted = this._sorted(found);
    const body = h('tbody');
    for (const life of sorted.slice(0, this._most)) {
      body.append(this._line(life, this._data.lives.number[life] === tensor));
    }
    // A column in which nothing stands only takes room.
    const told = COLUMNS.filter(
      ([column]) =>
        column === 'requested' ||
        column === 'category' ||
        all.some(life => this._text(life, column) !== '')
    );
    this._told = new Set(told.map(([column]) => column));
    body.querySelectorAll<HTMLElement>('td[data-column]').forEach(cell => {
      cell.hidden = !this._told.has(cell.dataset.column as Column);
    });
    const head = h('thead', {}, this._head(told));
    const focused = this._focused();
    this._table.replaceChildren(head, body);
    rove(head);
    rove(body);
    if (focused !== null) {
      this._table.querySelector<HTMLElement>(focused)?.focus({ preventScroll: true });
    }
    this._table.setAttribute('aria-rowcount', String(found.length));
    const left = found.length - this._most;
    this._more.hidden = left <= 0;
    this._more.textContent =
      left > PAGE ? `show ${PAGE} of ${left.toLocaleString('en-US')} more` : `show ${left} more`;
    this._rest.textContent = word === '' ? this._others(row, all) : '';
    body.querySelector('[aria-selected=true]')?.scrollIntoView?.({ block: 'nearest' });
  }

  /** Where the focus is in the table, which is about to be made anew. */
  private _focused(): string | null {
    const focused = document.activeElement;
    if (focused === null || !this._table.contains(focused)) {
      return null;
    }
    const tensor = focused.closest<HTMLElement>('tr')?.dataset.tensor;
    return tensor === undefined
      ? `thead [data-sort=${focused.getAttribute('data-sort')}]`
      : `tr[data-tensor="${tensor}"] button`;
  }

  private _others(row: number, all: number[]): string {
    let bytes = 0;
    let count: number | null = 0;
    this._data.categories.slice(0, 12).forEach((_, category) => {
      const mine = all.filter(life => this._data.lives.category[life] === category);
      const rest = restAt(this._data, row, category, mine);
      bytes += rest.bytes;
      count = count === null || rest.count === null ? null : count + rest.count;
    });
    if (bytes === 0) {
      return '';
    }
    const number = count === null ? 'Others' : `${count.toLocaleString('en-US')} smaller ones`;
    return `${number} hold ${formatBytes(bytes)}.`;
  }

  private _head(columns: readonly (readonly [Column, string])[]): HTMLElement {
    const row = h('tr');
    for (const [column, label] of columns) {
      const order = column === this._by ? (this._down ? 'descending' : 'ascending') : 'none';
      const arrow = order === 'none' ? '' : this._down ? ' ↓' : ' ↑';
      const turn = (): void => {
        this._down = this._by === column ? !this._down : column === 'requested';
        this._by = column;
        this.follow();
      };
      const sort = button(label + arrow, turn, { 'data-sort': column, title: `sort by ${label}` });
      row.append(h('th', { scope: 'col', 'aria-sort': order }, sort));
    }
    return row;
  }

  private _line(life: number, chosen: boolean): HTMLElement {
    const { requested, block, category, number } = this._data.lives;
    const { key, label } = this._data.categories[category[life]];
    const choose = (): void => this._choice.set({ tensor: chosen ? null : number[life] });
    const name = button(nameOf(this._data, life), choose, {
      class: 'nbx-Button nbx-Link',
      title: nameOf(this._data, life),
      'aria-pressed': String(chosen)
    });
    const row = h(
      'tr',
      { 'aria-selected': String(chosen), 'data-tensor': number[life] },
      h(
        'td',
        { title: `${exactBytes(requested[life])}, ${exactBytes(block[life])} taken` },
        formatBytes(requested[life])
      ),
      h(
        'td',
        { title: label },
        swatch(paintOf(key)),
        h('span', { class: 'nbx-Largest-category' }, label)
      ),
      h('td', { 'data-column': 'name' }, name)
    );
    for (const [column] of COLUMNS.slice(3)) {
      row.append(h('td', { 'data-column': column }, this._text(life, column)));
    }
    return row;
  }

  private _text(life: number, column: Column): string {
    if (column === 'category') {
      return this._data.categories[this._data.lives.category[life]].label;
    }
    const text = textOf(this._data, column === 'requested' ? -1 : this._data.lives[column][life]);
    const before = column === 'born_in' && text === '' && this._data.lives.born[life] < 0;
    return before ? 'before the recording' : text;
  }

  private _says(life: number): string {
    return COLUMNS.slice(1)
      .map(([column]) => this._text(life, column))
      .join(' ');
  }

  private _sorted(lives: number[]): number[] {
    const sign = this._down ? -1 : 1;
    const column = this._by;
    if (column === 'requested') {
      const { requested } = this._data.lives;
      return [...lives].sort((a, b) => sign * (requested[a] - requested[b]));
    }
    const text = new Map(lives.map(life => [life, this._text(life, column)]));
    return [...lives].sort((a, b) => sorted(text.get(a) ?? '', text.get(b) ?? '', sign));
  }

  private readonly _filter: HTMLInputElement;
  private readonly _table = h('table', { class: 'nbx-Table', 'data-testid': 'nbx-largest' });
  private readonly _rest = h('div', { class: 'nbx-mod-quiet' });
  private readonly _more: HTMLButtonElement;
  private _most = PAGE;
  private _by: Column = 'requested';
  private _down = true;
  private _told = new Set<Column>();
}

/** The order of two texts; one that says nothing comes last whichever way. */
export function sorted(a: string, b: string, sign: 1 | -1): number {
  if (a === '' || b === '') {
    return Number(a === '') - Number(b === '');
  }
  return sign * a.localeCompare(b, undefined, { numeric: true });
}
