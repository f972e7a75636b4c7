/** The chosen tensor: what it is, where it was born and freed, and what held it. */

import { exactBytes, formatBytes } from '../format.js';
import type { Choice } from './choice.js';
import { textOf, type IData } from './data.js';
import { button, h, swatch } from './dom.js';
import { rove } from './keys.js';
import { formatTime, nameOf, phaseAt, rowOf } from './moments.js';
import { paintOf } from './theme.js';
import type { IActions } from './tips.js';

export class TensorCard {
  readonly node = h('section', {
    class: 'nbx-Tensor',
    'aria-label': 'The chosen tensor',
    'data-testid': 'nbx-tensor'
  });

  constructor(
    private readonly _data: IData,
    private readonly _choice: Choice,
    private readonly _actions: IActions
  ) {}

  follow(): void {
    const { tensor } = this._choice.now;
    const life = tensor === null ? -1 : this._data.lives.number.indexOf(tensor);
    const shown = `${life}`;
    this.node.hidden = life < 0;
    if (life >= 0 && shown !== this._shown) {
      this._draw(life);
      rove(this.node);
    }
    this._shown = shown;
  }

  private _draw(life: number): void {
    const { categories, lives } = this._data;
    const { key, label } = categories[lives.category[life]];
    const form = [lives.shape, lives.dtype].map(column => textOf(this._data, column[life]));
    const size = h('span', { title: exactBytes(lives.requested[life]) }, this._size(life));
    this.node.replaceChildren(
      h(
        'div',
        { class: 'nbx-Tensor-head' },
        h('b', {}, swatch(paintOf(key)), nameOf(this._data, life)),
        h('span', {}, [label, ...form].filter(Boolean).join(' · '), ' · ', size),
        button('close', () => this._choice.set({ tensor: null }), {
          'aria-label': 'Close the chosen tensor'
        })
      ),
      h('dl', {}, ...this._facts(life).flatMap(([name, fact]) => [h('dt', {}, name), fact]))
    );
  }

  private _size(life: number): string {
    const { requested, block } = this._data.lives;
    const asked = formatBytes(requested[life]);
    return block[life] === requested[life]
      ? asked
      : `${asked} in a block of ${formatBytes(block[life])}`;
  }

  private _facts(life: number): [string, HTMLElement][] {
    const { lives, events } = this._data;
    const [born, freed] = [lives.born[life], lives.freed[life]];
    const phase = textOf(this._data, lives.born_in[life]);
    const facts: [string, HTMLElement][] = [
      [
        'born',
        born < 0
          ? h('dd', {}, 'before the recording')
          : this._event(born, phase, textOf(this._data, lives.line[life]))
      ],
      [
        'freed',
        freed >= events
          ? h('dd', {}, 'not in this recording: it lives at its end')
          : this._event(freed, phaseAt(this._data, freed + 1), '')
      ]
    ];
    const holders = lives.holders[life].map(path => h('li', {}, textOf(this._data, path)));
    if (holders.length > 0) {
      facts.push(['held at the end by', h('dd', {}, h('ul', {}, ...holders))]);
    }
    const stack = lives.stack[life].map(line => textOf(this._data, line));
    if (stack.length > 1) {
      const lines = stack.map(line => h('li', {}, line, ' ', this._jump(line)));
      facts.push(['stack of its birth', h('dd', {}, h('ol', {}, ...lines))]);
    }
    return facts;
  }

  /** When it was, in which cell and phase, by which line. */
  private _event(event: number, phase: string, line: string): HTMLElement {
    const { cells, moments } = this._data;
    const cell = cells.find(([, , , first, last]) => first <= event && event < last);
    const row = rowOf(this._data, event + 1);
    const where = cells.length > 1 && cell !== undefined ? textOf(this._data, cell[0]) : '';
    const exact = moments.event[row] === event + 1 ? '' : 'about ';
    const parts = [
      `${exact}${formatTime(moments.t[row])}`,
      `event ${event.toLocaleString('en-US')}`,
      where,
      phase,
      line
    ];
    const go = button('show', () => this._choice.set({ moment: moments.event[row] }), {
      class: 'nbx-Button nbx-Link',
      'aria-label': `Show the moment of event ${event}`
    });
    return h('dd', {}, parts.filter(Boolean).join(' · '), ' ', go, ' ', this._jump(line));
  }

  /** Goes to a line of a cell, where the front end can. */
  private _jump(line: string): HTMLElement | null {
    const goTo = this._actions.goTo;
    return goTo === null || !line.startsWith('In [')
      ? null
      : button('go to the line', () => goTo(line), {
          class: 'nbx-Button nbx-Link',
          'aria-label': `Go to ${line}`
        });
  }

  private _shown = '';
}
