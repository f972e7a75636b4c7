/** The recorded code, and beside each line what it took: alive at the peak, at the end, in all. */

import { exactBytes, formatBytes } from '../format.js';
import type { IGrowth, ILines } from './data.js';
import { button, h } from './dom.js';
import { rove } from './keys.js';
import type { IActions } from './tips.js';

const HEADS = ['line', 'at the peak', 'at the end', 'taken in all', 'peak and end', 'code'];
/** What each figure is, in the order of the columns. */
const MEANINGS = [
  'of what the line took: alive at the peak',
  'of what the line took: alive at the end',
  'all that the line took, in all passes together'
];

/** Lines that add to what grows from step to step, and what is said of each. */
export function growingLines(growth: IGrowth | null): Map<number, string> {
  const found = new Map<number, string>();
  for (const { number, name, slope } of growth?.holders ?? []) {
    if (number !== null) {
      const said = `${name.replaceAll('`', '')} grows by ${formatBytes(slope)} a step`;
      found.set(number, [found.get(number), said].filter(Boolean).join('; '));
    }
  }
  return found;
}

/** @param growing What is said of the lines that add to what grows. */
export function linesOf(
  lines: ILines,
  actions: IActions,
  growing: ReadonlyMap<number, string>
): HTMLElement {
  const taken = new Map(lines.rows.map(([number, ...bytes]) => [number, bytes]));
  const most = Math.max(
    ...[...lines.rows, ...lines.elsewhere].flatMap(row => row.slice(1, 3) as number[]),
    1
  );
  const body = h('tbody');
  let before = 0;
  for (const [number, text] of codeOf(lines)) {
    if (before > 0 && number !== before + 1) {
      body.append(gap());
    }
    before = number;
    const line = /^In \[/.test(lines.file) ? `${lines.file}, line ${number}` : '';
    const named = numberOf(number, taken.has(number) ? line : '', actions);
    const row = rowOf(named, text, taken.get(number), most);
    const said = growing.get(number);
    if (said !== undefined) {
      row.classList.add('nbx-mod-grows');
      row.lastElementChild?.append(h('span', { class: 'nbx-Grows' }, said));
    }
    body.append(row);
  }
  for (const [reason, ...bytes] of lines.elsewhere) {
    const row = rowOf('', reason, bytes, most);
    row.classList.add('nbx-mod-quiet');
    body.append(row);
  }
  const sums = [0, 1, 2].map(column =>
    [...lines.rows, ...lines.elsewhere].reduce((sum, row) => sum + Number(row[column + 1]), 0)
  );
  const sum = rowOf('', '= allocated', sums, 0);
  sum.classList.add('nbx-mod-sum');
  body.append(sum);
  rove(body);
  const head = HEADS.map((name, i) =>
    h('th', { scope: 'col', class: i >= 4 ? 'nbx-mod-text' : null }, name)
  );
  return h(
    'table',
    { class: 'nbx-Table nbx-Lines', 'data-testid': 'nbx-lines' },
    h('caption', {}, `Allocated bytes by line of ${lines.file}`),
    h('thead', {}, h('tr', {}, ...head)),
    body
  );
}

/** How to get the lines, where no stacks were taken. */
export function noLines(): HTMLElement {
  const code = (text: string) => h('code', {}, text);
  return h(
    'p',
    { class: 'nbx-mod-quiet', 'data-testid': 'nbx-no-lines' },
    'Which line took what is known where stacks were taken: ',
    code('%%memtrace --stacks'),
    ' in a notebook, ',
    code('nbmem run --stacks'),
    ' for a script.'
  );
}

/** The code from its first line that says something; where nobody has its text, the numbers of the lines that took memory. */
function codeOf({ code, rows }: ILines): readonly (readonly [number, string])[] {
  const first = code.findIndex(([, text]) => text.trim() !== '');
  return code.length > 0 ? code.slice(first) : rows.map(([number]) => [number, ''] as const);
}

function gap(): HTMLElement {
  return h('tr', {}, h('td', { colspan: HEADS.length, class: 'nbx-mod-text nbx-mod-quiet' }, '⋮'));
}

/** The line's number; a button that goes there where the front end can and there is a reason. */
function numberOf(number: number, line: string, { goTo }: IActions): Node | string {
  return goTo === null || line === ''
    ? String(number)
    : button(String(number), () => goTo(line), {
        class: 'nbx-Button nbx-Link',
        'aria-label': `Go to ${line}`
      });
}

function rowOf(
  number: Node | string,
  text: string,
  bytes: readonly number[] | undefined,
  most: number
): HTMLElement {
  const figures = MEANINGS.map((meaning, i) =>
    bytes === undefined
      ? h('td')
      : h(
          'td',
          { title: `${exactBytes(bytes[i])} ${meaning}`, 'data-bytes': bytes[i] },
          formatBytes(bytes[i])
        )
  );
  return h(
    'tr',
    {},
    h('td', {}, number),
    ...figures,
    h('td', { class: 'nbx-mod-text' }, bytes === undefined || most === 0 ? null : bar(bytes, most)),
    h('th', { scope: 'row', title: text }, text)
  );
}

function bar([peak, kept]: readonly number[], most: number): HTMLElement {
  const width = (count: number): string => `width: ${Math.round((100 * count) / most)}%`;
  return h(
    'div',
    { class: 'nbx-Peakbar', 'aria-hidden': 'true' },
    h('span', { class: 'nbx-mod-peak', style: width(peak) }),
    h('span', { class: 'nbx-mod-kept', style: width(kept) })
  );
}
