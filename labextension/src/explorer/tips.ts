/** The tips with their buttons, and the history of the cells. */

import { isAllowed } from '../actions.js';
import { formatBytes, formatMs, formatPeak } from '../format.js';
import type { ICellRow, IData, ITip } from './data.js';
import { button, h, sentence } from './dom.js';
import { rove } from './keys.js';

/** What a front end can do for a tip; null where it cannot. */
export interface IActions {
  /** Put code below the active cell. It is not run. */
  insert: ((code: string) => void) | null;
  /** Put a line in a cell below the active one and run it; it must change nothing. */
  run: ((line: string) => void) | null;
  /** Free what is unused, now; null where nobody can. */
  freeCache: (() => void) | null;
  /** Go to a line of a cell, `In [3], line 12`. */
  goTo: ((line: string) => void) | null;
}

/** What a page without a kernel and without a notebook can do: code can be copied. */
export const NO_ACTIONS: IActions = { insert: null, run: null, freeCache: null, goTo: null };

const GROUNDS = new Map([
  ['exact', 'counted in this recording'],
  ['simulated', 'simulated on the recorded events'],
  ['estimated', 'estimated']
]);

const ADDED = 'in a new cell below; look at it, then run it';

export function tipsOf(data: IData, actions: IActions): HTMLElement {
  const list = h('ul', { class: 'nbx-Tips', 'data-testid': 'nbx-tips' });
  list.append(...data.tips.map(tip => tipOf(tip, actions)));
  return list;
}

/** The line that tries a tip; null where it cannot be tried. A saved notebook may hold anything. */
export function tryLine(rule: unknown): string | null {
  return typeof rule === 'string' && /^[a-z][a-z0-9_]{0,39}$/.test(rule)
    ? `%nbmem try ${rule}`
    : null;
}

/** What can be done with a tip here. */
export function buttonsOf(tip: ITip, actions: IActions): HTMLElement {
  const buttons = h('div', { class: 'nbx-Tip-buttons' });
  const { code } = tip;
  const said = h('span', { class: 'nbx-mod-quiet', role: 'status' });
  const { run } = actions;
  const line = tryLine(tip.try);
  if (run !== null && line !== null) {
    buttons.append(
      button(
        'Try it',
        () => {
          run(line);
          said.textContent = 'runs on a virtual card, in a new cell below';
        },
        { title: `${line}: the cell with this change, on a virtual card; nothing here changes` }
      )
    );
  }
  if (code !== null) {
    if (actions.insert !== null) {
      const insert = actions.insert;
      buttons.append(
        button('Add as a cell', () => {
          insert(code);
          said.textContent = ADDED;
        })
      );
    }
    buttons.append(
      button('Copy', () => {
        navigator.clipboard.writeText(code).then(
          () => (said.textContent = 'copied'),
          () => (said.textContent = 'the browser did not allow it: select the code')
        );
      })
    );
  }
  if (tip.command !== null) {
    const [name, ...words] = tip.command;
    const line = tip.command.join(' ');
    const { insert, freeCache } = actions;
    if (line === 'free cache' && freeCache !== null) {
      buttons.append(button(tip.saves === '' ? 'Free now' : `Free ${tip.saves} now`, freeCache));
    } else if (insert !== null && isAllowed({ name, arguments: words })) {
      buttons.append(
        button(`Add %nbmem ${line} as a cell`, () => {
          insert(`%nbmem ${line}`);
          said.textContent = ADDED;
        })
      );
    }
  }
  buttons.append(said);
  return buttons;
}

function tipOf(tip: ITip, actions: IActions): HTMLElement {
  const { code } = tip;
  const ground = GROUNDS.get(tip.ground) ?? tip.ground;
  const buttons = buttonsOf(tip, actions);
  rove(buttons);
  const brought =
    tip.measured === null
      ? null
      : h('div', { class: 'nbx-Tip-brought' }, `Applied: it freed ${tip.measured}.`);
  return h(
    'li',
    { 'data-rule': tip.rule },
    h('div', { class: 'nbx-Tip-title' }, h('b', {}, ...sentence(tip.title))),
    h(
      'div',
      { class: 'nbx-Tip-saves' },
      tip.saves === '' ? ground : `saves ${tip.saves}, ${ground}`
    ),
    h('div', {}, ...sentence(tip.evidence)),
    brought,
    code === null ? null : h('pre', { class: 'nbx-Code' }, code),
    buttons
  );
}

export function historyOf(rows: ICellRow[]): HTMLElement {
  const head = [
    'cell',
    'its first line',
    'change',
    'peak',
    'now',
    'reserved',
    'time',
    'peak and now'
  ];
  const most = Math.max(...rows.map(row => row.peak ?? row.kept), 1);
  return h(
    'table',
    { class: 'nbx-Table', 'data-testid': 'nbx-history' },
    h('caption', {}, 'Cells and what they left on the card'),
    h(
      'thead',
      {},
      h(
        'tr',
        {},
        ...head.map((name, i) =>
          h('th', { scope: 'col', class: i === 1 || i === 7 ? 'nbx-mod-text' : null }, name)
        )
      )
    ),
    h('tbody', {}, ...rows.map(row => cellOf(row, most)))
  );
}

function cellOf(row: ICellRow, most: number): HTMLElement {
  const width = (bytes: number): string => `width: ${Math.round((100 * bytes) / most)}%`;
  const bar = h(
    'div',
    { class: 'nbx-Peakbar', 'aria-hidden': 'true' },
    h('span', { class: 'nbx-mod-peak', style: width(row.peak ?? row.kept) }),
    h('span', { class: 'nbx-mod-kept', style: width(row.kept) })
  );
  return h(
    'tr',
    {},
    h('td', {}, row.number === null ? '' : `[${row.number}]`),
    h('th', { scope: 'row', title: row.label }, row.label),
    h('td', {}, formatBytes(row.delta, true)),
    h('td', {}, row.peak === null ? '–' : formatPeak(row.peak, row.peak_exact ?? true)),
    h('td', {}, formatBytes(row.kept)),
    h('td', {}, formatBytes(row.reserved)),
    h('td', {}, formatMs(row.duration / 1e6)),
    h(
      'td',
      { class: 'nbx-mod-text' },
      row.error === null ? bar : h('span', { class: 'nbx-Error' }, row.error)
    )
  );
}
