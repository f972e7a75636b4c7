/** An out-of-memory error as one card: what, why, what to do; the traceback is folded behind it. */

import { button, h, sentence, swatch } from './dom.js';
import { rove } from './keys.js';
import { paintOf } from './theme.js';
import { buttonsOf, type IActions } from './tips.js';
import type { ITip } from './data.js';

export const OOM_MIME = 'application/vnd.nbmem.oom+json';
/** Raised on the Python side when an older front end could no longer draw it. */
export const OOM_VERSION = 1;

/** As nbmem/views/oom_data.py writes it. */
export interface IOom {
  version: number;
  title: string;
  reason: string;
  caught: boolean;
  what_to_do: string;
  remedies: ITip[];
  /** Rows: key of a category or null, bytes as text, name. */
  tables: { caption: string; rows: [string | null, string, string][] }[];
  after: string | null;
  command: string[] | null;
  notes: string[];
  others: string[];
  /** The user's lines, the most recent call last. */
  calls: string[];
  /** What ended the recording, where no traceback stands beside the card. */
  error: string | null;
}

/** The card's data, or why it cannot be drawn. */
export function oomOf(output: unknown): IOom {
  const found = (output ?? {}) as Partial<IOom>;
  if (found.version !== OOM_VERSION || typeof found.title !== 'string') {
    throw new Error(
      `This explanation is of version ${String(found.version).slice(0, 20)} and this nbmem reads ` +
        `${OOM_VERSION}: bring the kernel and JupyterLab to the same nbmem.`
    );
  }
  const list = <T>(some: T[] | undefined): T[] => (Array.isArray(some) ? some : []);
  return {
    version: OOM_VERSION,
    title: found.title,
    reason: found.reason ?? '',
    caught: found.caught === true,
    what_to_do: found.what_to_do ?? '',
    remedies: list(found.remedies),
    tables: list(found.tables),
    after: found.after ?? null,
    command: found.command ?? null,
    notes: list(found.notes),
    others: list(found.others),
    calls: list(found.calls),
    error: found.error ?? null
  };
}

/** A traceback that was printed beside the card, and can be folded. */
export interface ITraceback {
  show(shown: boolean): void;
}

export function oomCard(oom: IOom, actions: IActions, traceback: ITraceback | null): HTMLElement {
  return h(
    'section',
    { class: 'nbx-Oom', 'data-testid': 'nbx-oom', 'aria-label': oom.title },
    h('div', { class: 'nbx-Verdict' }, ...sentence(oom.title)),
    h('p', {}, ...sentence(oom.reason)),
    remediesOf(oom, actions),
    afterOf(oom, actions),
    ...oom.notes.map(note => h('p', { class: 'nbx-mod-quiet' }, ...sentence(note))),
    folded('What held the memory', tablesOf(oom)),
    folded(
      oom.others.length === 1 ? 'One more error was caught' : 'More errors were caught',
      oom.others.length === 0 ? null : listOf(oom.others)
    ),
    traceback === null ? callsOf(oom) : toggleOf(traceback)
  );
}

function remediesOf({ remedies, what_to_do }: IOom, actions: IActions): HTMLElement | null {
  const items = remedies.map(tip => {
    const buttons = buttonsOf(tip, actions);
    rove(buttons);
    return h(
      'li',
      { 'data-rule': tip.rule },
      h('b', {}, ...sentence(tip.title)),
      h('span', { class: 'nbx-mod-quiet' }, ` (${tip.ground})`),
      h('div', {}, ...sentence(tip.evidence)),
      tip.code === null ? null : h('pre', { class: 'nbx-Code' }, tip.code),
      buttons
    );
  });
  return items.length === 0
    ? null
    : h(
        'div',
        {},
        h('div', { class: 'nbx-Title' }, what_to_do),
        h('ol', { class: 'nbx-Oom-remedies' }, ...items)
      );
}

/** What the failure leaves behind, with the command that frees it. */
function afterOf({ after, command }: IOom, actions: IActions): HTMLElement | null {
  if (after === null) {
    return null;
  }
  const tip: ITip = {
    rule: '',
    title: after,
    evidence: '',
    saves: '',
    ground: 'exact',
    code: null,
    command,
    measured: null
  };
  const buttons = buttonsOf(tip, actions);
  rove(buttons);
  return h('div', { class: 'nbx-Oom-after' }, h('b', {}, ...sentence(after)), buttons);
}

function tablesOf({ tables }: IOom): HTMLElement | null {
  const drawn = tables.map(({ caption, rows }) =>
    h(
      'table',
      { class: 'nbx-Oom-table' },
      h('caption', {}, caption),
      h(
        'tbody',
        {},
        ...rows.map(([category, bytes, name]) =>
          h(
            'tr',
            {},
            h('td', {}, bytes),
            h('td', {}, category === null ? null : swatch(paintOf(category)), name)
          )
        )
      )
    )
  );
  return drawn.length === 0 ? null : h('div', { class: 'nbx-Oom-tables' }, ...drawn);
}

function listOf(lines: readonly string[]): HTMLElement {
  return h('ul', { class: 'nbx-Notes' }, ...lines.map(line => h('li', {}, ...sentence(line))));
}

function folded(title: string, inside: HTMLElement | null): HTMLElement | null {
  return inside === null ? null : h('details', {}, h('summary', {}, title), inside);
}

/** Where no traceback was printed: the lines that led there, and the error's own text. */
function callsOf({ calls, error }: IOom): HTMLElement | null {
  const lines = [...calls, ...(error === null ? [] : [error])];
  return folded(
    'Traceback, the most recent call last',
    lines.length === 0 ? null : h('pre', { class: 'nbx-Code' }, lines.join('\n'))
  );
}

function toggleOf(traceback: ITraceback): HTMLElement {
  let shown = false;
  const made = button('Traceback', () => turn(!shown), {
    class: 'nbx-Button nbx-Link nbx-Expand',
    'data-testid': 'nbx-traceback'
  });
  const turn = (now: boolean): void => {
    shown = now;
    traceback.show(now);
    made.setAttribute('aria-expanded', String(now));
  };
  turn(false);
  return h('div', {}, made);
}

const CHILD = 'jp-OutputArea-child';
const BEHIND = 'nbx-mod-behind';
const FRONT = 'nbx-mod-front';
const AREA = 'nbx-mod-folds';

/**
 * The traceback that stands before a card in the same output; null where there is none. The card
 * comes to the front of the output, and the traceback behind it.
 */
export function tracebackBefore(node: Element): (ITraceback & { release(): void }) | null {
  const mine = node.closest(`.${CHILD}`);
  const area = mine?.parentElement ?? null;
  if (mine === null || area === null) {
    return null;
  }
  const children = [...area.children];
  const at = children.indexOf(mine);
  const found = children.slice(0, at).reverse().find(isTraceback);
  if (found === undefined) {
    return null;
  }
  area.classList.add(AREA);
  mine.classList.add(FRONT);
  found.classList.add(BEHIND);
  return {
    show: shown => void found.toggleAttribute('hidden', !shown),
    release: () => {
      area.classList.remove(AREA);
      mine.classList.remove(FRONT);
      found.classList.remove(BEHIND);
      found.removeAttribute('hidden');
    }
  };
}

function isTraceback(child: Element): boolean {
  const output = child.querySelector('[data-mime-type^="application/vnd.jupyter."]');
  return output !== null && /Traceback \(most recent call last\)/.test(output.textContent ?? '');
}
