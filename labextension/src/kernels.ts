/** Every kernel of the server, and what each holds, as far as this page is told. */

import { formatBytes } from './format.js';
import type { IProcess } from './messages.js';
import { newest, type IKernelState } from './state.js';
import type { ITranslator } from './why.js';

/** What the server says of a session; as much of JupyterLab's model as is needed here. */
export interface ISession {
  path: string;
  type: string;
  kernel: { id: string; execution_state?: string } | null;
}

/** A kernel that this page follows. */
export interface IKnown {
  kernel: string;
  state: IKernelState;
}

export interface IKernelRow {
  id: string;
  name: string;
  /** To open it; null where it is no notebook. */
  path: string | null;
  isCurrent: boolean;
  isBusy: boolean;
  /** Whether nbmem is loaded there; null where this page does not follow it. */
  isLoaded: boolean | null;
  /** Bytes of its live tensors on all cards; null where nobody told. */
  allocated: number | null;
  /** Bytes that the driver counts for it. */
  process: number | null;
}

/**
 * The rows, the largest first. A kernel of another page is known by what the driver says of its
 * process, which the kernel in front (`current`) reads with its own.
 */
export function kernelRows(
  sessions: readonly ISession[],
  known: readonly IKnown[],
  current: string | null
): IKernelRow[] {
  const states = new Map(known.map(one => [one.kernel, one.state]));
  const processes = (current === null ? undefined : states.get(current))?.processes ?? [];
  const rows = new Map<string, IKernelRow>();
  for (const { path, type, kernel } of sessions) {
    if (kernel === null) {
      continue;
    }
    const name = path.split('/').pop() ?? path;
    const state = states.get(kernel.id);
    const cards = state === undefined ? [] : (newest(state)?.cards ?? []);
    rows.set(kernel.id, {
      id: kernel.id,
      name,
      path: type === 'notebook' ? path : null,
      isCurrent: kernel.id === current,
      isBusy: kernel.execution_state === 'busy' || (state !== undefined && state.cell !== null),
      isLoaded: state === undefined ? null : state.link.kind === 'live',
      allocated: cards.length > 0 ? cards.reduce((sum, card) => sum + card.allocated, 0) : null,
      process: usedBy(name, processes) ?? sumOf(cards.map(card => card.process))
    });
  }
  const size = (row: IKernelRow): number => row.process ?? row.allocated ?? -1;
  return [...rows.values()].sort((a, b) => size(b) - size(a) || (a.name < b.name ? -1 : 1));
}

/** What a kernel holds in one figure: its process, or else its tensors alone. */
export function amountOf(row: IKernelRow, trans: ITranslator): string {
  return row.process === null && row.allocated !== null
    ? trans.__('%1 in tensors', formatBytes(row.allocated))
    : formatBytes(row.process);
}

/** The processes that are none of these kernels. */
export function otherProcesses(processes: IProcess[], rows: readonly IKernelRow[]): IProcess[] {
  const names = new Set(rows.filter(row => row.path !== null).map(row => row.name));
  return processes.filter(one => one.notebook === null || !names.has(one.notebook));
}

function usedBy(name: string, processes: readonly IProcess[]): number | null {
  return sumOf(processes.filter(one => one.notebook === name).map(one => one.used));
}

/** The sum; null of nothing, or where one is not known. */
function sumOf(amounts: readonly (number | null)[]): number | null {
  return amounts.reduce<number | null>(
    (sum, one) => (sum === null || one === null ? null : sum + one),
    amounts.length > 0 ? 0 : null
  );
}
