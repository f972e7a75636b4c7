/** What is known of one kernel, and how each message changes it: no drawing, no connection. */

import type {
  ICardChoice,
  ICardInfo,
  ICell,
  ICellEnded,
  ILastReport,
  IProcess,
  IRanksNow,
  ISample,
  IState,
  Push
} from './messages.js';

/** How far the panel has come with a kernel. */
export type Link =
  | { kind: 'no-kernel' }
  | { kind: 'starting' }
  | { kind: 'restarting' }
  | { kind: 'dead' }
  | { kind: 'asking'; busy: boolean }
  | { kind: 'other-language'; language: string }
  | { kind: 'not-loaded' }
  | { kind: 'not-installed' }
  | { kind: 'failed'; error: string }
  | { kind: 'loading' }
  | { kind: 'too-old' }
  | { kind: 'other-version'; version: number }
  | { kind: 'live' };

/** Everything that the panel shows of one kernel. */
export interface IKernelState {
  link: Link;
  /** Whether a State has been received: without one, cards and earlier cells are not known. */
  complete: boolean;
  /** The cell that runs now. */
  cell: ICell | null;
  /** Of the last WINDOW_MS, oldest first. */
  samples: ISample[];
  /** The cells that have run, oldest first. */
  cells: ICellEnded[];
  report: ILastReport | null;
  processes: IProcess[];
  /** What a cell's ranks wrote last. */
  ranks: IRanksNow | null;
  cards: ICardInfo[];
  choices: ICardChoice[];
  muted: string[];
  notes: string[];
  /** torch's version; null if the notebook has not imported it. */
  torch: string | null;
  rate: number | null;
}

/** How much of the past the line shows. */
export const WINDOW_MS = 60_000;
const MOST_SAMPLES = 1200;
const MOST_CELLS = 200;
const MOST_NOTES = 10;

export function emptyState(link: Link): IKernelState {
  return {
    link,
    complete: false,
    cell: null,
    samples: [],
    cells: [],
    report: null,
    processes: [],
    ranks: null,
    cards: [],
    choices: [],
    muted: [],
    notes: [],
    torch: null,
    rate: null
  };
}

/** The state after a push. Whatever a kernel pushes, it is live. */
export function afterPush(state: IKernelState, push: Push): IKernelState {
  const live: IKernelState = { ...state, link: { kind: 'live' } };
  switch (push.kind) {
    case 'loaded':
      return emptyState({ kind: 'live' });
    case 'cell_begun':
      return { ...live, cell: push.cell };
    case 'sample':
      return { ...live, cell: push.cell, samples: withSample(state.samples, push) };
    case 'cell_ended':
      return { ...live, cell: null, cells: withCell(state.cells, push) };
    case 'last_report':
      return { ...live, report: push, muted: state.muted.filter(rule => !finds(push, rule)) };
    case 'processes':
      return { ...live, processes: push.processes };
    case 'ranks_now':
      return { ...live, ranks: push };
    case 'note':
      return { ...live, notes: withNote(state.notes, push.sentence) };
    case 'unloaded':
      return emptyState({ kind: 'not-loaded' });
  }
}

/** The state after the kernel has told all that it knows; what was pushed meanwhile stays. */
export function afterState(state: IKernelState, told: IState): IKernelState {
  return {
    link: { kind: 'live' },
    complete: true,
    cell: told.cell,
    samples: state.samples.filter(isLater(told)).reduce(withSample, recent(told.samples)),
    cells: state.cells.filter(isLater(told)).reduce(withCell, told.cells.slice(-MOST_CELLS)),
    report: state.report !== null && isLater(told)(state.report) ? state.report : told.report,
    processes: told.processes,
    ranks: state.ranks !== null && isLater(told)(state.ranks) ? state.ranks : told.ranks,
    cards: told.cards,
    choices: told.choices,
    muted: told.muted,
    notes: told.notes.slice(-MOST_NOTES),
    torch: told.torch,
    rate: told.rate_hz
  };
}

/** The cards of the newest sample: what is on each now. */
export function newest(state: IKernelState): ISample | null {
  return state.samples[state.samples.length - 1] ?? null;
}

/** The sentence of the out-of-memory error in which the newest cell ended; null without one. */
export function failureOf(state: IKernelState): string | null {
  const { report, cells, cell } = state;
  const last = cells[cells.length - 1]?.cell.begun_ms;
  const isNewest = cell === null && (last === undefined || last === report?.cell?.begun_ms);
  // Any other error is JupyterLab's own to show, and the verdict is of the peak.
  return report?.error && isNewest && report.verdict.startsWith(report.error) ? report.error : null;
}

function isLater(told: IState): (message: { t_ms: number }) => boolean {
  return message => message.t_ms > told.t_ms;
}

/** Whether a report has such a finding. A new one has none that is muted. */
function finds(report: ILastReport, rule: string): boolean {
  return report.findings.some(finding => finding.rule === rule);
}

function withSample(samples: ISample[], sample: ISample): ISample[] {
  return recent([...samples, sample]);
}

/**
 * Those of the last minute, and the one before them: what it read held until the next was read. A
 * kernel whose clock was set back starts the line anew.
 */
function recent(samples: ISample[]): ISample[] {
  const last = samples[samples.length - 1];
  if (last === undefined) {
    return [];
  }
  const kept = samples.filter(sample => sample.t_ms <= last.t_ms);
  const first = kept.findIndex(sample => sample.t_ms >= last.t_ms - WINDOW_MS);
  return kept.slice(Math.max(first - 1, kept.length - MOST_SAMPLES, 0));
}

function withCell(cells: ICellEnded[], cell: ICellEnded): ICellEnded[] {
  // Without a delta it has no line in the notebook's history either.
  return cell.delta === null ? cells : [...cells, cell].slice(-MOST_CELLS);
}

function withNote(notes: string[], sentence: string): string[] {
  return [...notes.filter(note => note !== sentence), sentence].slice(-MOST_NOTES);
}
