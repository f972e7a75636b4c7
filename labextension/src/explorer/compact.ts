/** What stands under a cell at first: the verdict, the curve in small, its phases, the first tip. */

import { formatBytes } from '../format.js';
import { OTHER_TINT, PHASE_TINTS } from '../palette.js';
import { textOf, type IData } from './data.js';
import { h, sentence, swatch } from './dom.js';
import { rove } from './keys.js';
import { formatTime } from './moments.js';
import { sparkOf } from './spark.js';
import { buttonsOf, type IActions } from './tips.js';

/** Phases with a name of their own in the row; the others are counted. */
const MOST_PHASES = 8;

/**
 * The report in short.
 *
 * @param toggle Opens and closes the explorer; null where it is always open.
 */
export function compactOf(data: IData, actions: IActions, toggle: HTMLElement | null): HTMLElement {
  // In older outputs the verdict has the figures.
  const told = [data.peak_figures ?? '', data.source].filter(part => part !== '').join(', ');
  const curve = data.peak.allocated > 0 && data.events > 0;
  const peak = `peak ${formatBytes(data.peak.allocated)}`;
  return h(
    'div',
    { class: 'nbx-Compact', 'data-testid': 'nbx-compact' },
    h(
      'div',
      { class: 'nbx-Compact-head' },
      h('div', { class: 'nbx-Verdict' }, ...sentence(data.verdict)),
      toggle
    ),
    told === '' ? null : h('div', {}, told),
    h('div', { class: 'nbx-mod-quiet' }, data.about),
    data.would_run_on ? h('div', { class: 'nbx-mod-quiet' }, data.would_run_on) : null,
    data.error === null ? null : endedBy(data.error),
    curve
      ? h(
          'div',
          { class: 'nbx-Compact-row' },
          h(
            'div',
            { class: 'nbx-Compact-curve', title: `allocated, ${peak}` },
            sparkOf(data, data.by_event)
          ),
          phasesOf(data)
        )
      : null,
    tipOf(data, actions),
    notesOf(data.notes)
  );
}

/** Each phase by its name: the highest of its peaks, and the time of all its turns together. */
export function phaseSums(
  data: IData
): { name: string; peak: number; took: number; turns: number }[] {
  const sums = new Map<string, { name: string; peak: number; took: number; turns: number }>();
  for (const phase of data.phases.filter(({ depth }) => depth === 0)) {
    const name = textOf(data, phase.name);
    const sum = sums.get(name) ?? { name, peak: 0, took: 0, turns: 0 };
    sum.peak = Math.max(sum.peak, phase.peak);
    sum.took += phase.t1 - phase.t0;
    sum.turns += 1;
    sums.set(name, sum);
  }
  return [...sums.values()];
}

function phasesOf(data: IData): HTMLElement | null {
  const sums = phaseSums(data);
  const highest = Math.max(...sums.map(({ peak }) => peak));
  const shown = sums.slice(0, MOST_PHASES).map(({ name, peak, took, turns }) =>
    h(
      'li',
      {
        class: peak === highest ? 'nbx-mod-peak' : null,
        title: `${name}: highest peak of ${turns} shown turns, and their time together`
      },
      swatch(`background-color: ${PHASE_TINTS.get(name) ?? OTHER_TINT}`),
      h('span', { class: 'nbx-Phase-name' }, name),
      ` ${formatBytes(peak)} `,
      h('span', { class: 'nbx-mod-quiet' }, formatTime(took))
    )
  );
  const rest = sums.length - shown.length;
  return sums.length === 0
    ? null
    : h(
        'ul',
        { class: 'nbx-Compact-phases', 'aria-label': 'Peak and time of each phase' },
        h('li', { class: 'nbx-mod-quiet', 'aria-hidden': 'true' }, 'peak and time of'),
        ...shown,
        rest > 0 ? h('li', { class: 'nbx-mod-quiet' }, `${rest} more`) : null
      );
}

function tipOf(data: IData, actions: IActions): HTMLElement | null {
  const [tip] = data.tips;
  if (tip === undefined) {
    return null;
  }
  const buttons = buttonsOf(tip, actions);
  rove(buttons);
  const brought = tip.measured === null ? '' : `; applied, it freed ${tip.measured}`;
  return h(
    'div',
    { class: 'nbx-Compact-tip', 'data-testid': 'nbx-tip' },
    h(
      'span',
      {},
      h('b', {}, ...sentence(tip.title)),
      `${tip.title.includes(tip.saves) ? '' : ` saves ${tip.saves}`}${brought}`
    ),
    buttons
  );
}

function notesOf(notes: string[]): HTMLElement | null {
  const list = h('ul', { class: 'nbx-Notes' }, ...notes.map(note => h('li', {}, note)));
  const count = `${notes.length} note${notes.length === 1 ? '' : 's'}`;
  return notes.length === 0
    ? null
    : h('details', { class: 'nbx-mod-quiet' }, h('summary', {}, count), list);
}

/** What ended the cell: torch's advice behind the first two sentences is a click away. */
function endedBy(error: string): HTMLElement {
  const [, first, rest] = /^(.{60,}?\. )(.{80,})$/.exec(error) ?? [null, error, null];
  const said = `Ended by ${first.trim()}`;
  return rest === null
    ? h('div', { class: 'nbx-Ended' }, said)
    : h(
        'details',
        { class: 'nbx-Ended' },
        h('summary', {}, said),
        h('div', { class: 'nbx-mod-quiet' }, rest)
      );
}
