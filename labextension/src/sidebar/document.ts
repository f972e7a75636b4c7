/** What the sidebar does in a notebook or console: find a cell, trace one, insert code for the user. */

import { isCodeCellModel, type Cell } from '@jupyterlab/cells';
import { ConsolePanel } from '@jupyterlab/console';
import { NotebookActions, NotebookPanel } from '@jupyterlab/notebook';

import type { ICell } from '../messages.js';
import type { Host } from './front.js';

const TRACE = '%%memtrace';

/** The cell that a message speaks of; null if it is not in this document any more. */
export function findCell(host: Host, cell: ICell): Cell | null {
  if (!(host instanceof NotebookPanel)) {
    return null;
  }
  const cells = host.content.widgets;
  if (cell.cell_id !== null) {
    return cells.find(one => one.model.id === cell.cell_id) ?? null;
  }
  return (
    cells.find(
      ({ model }) =>
        cell.number !== null && isCodeCellModel(model) && model.executionCount === cell.number
    ) ?? null
  );
}

/** Show a cell and make it the active one. */
export async function goTo(host: Host, cell: Cell): Promise<void> {
  if (host instanceof NotebookPanel) {
    const index = host.content.widgets.indexOf(cell);
    host.content.deselectAll();
    host.content.activeCellIndex = index;
    await host.content.scrollToItem(index, 'smart');
    host.content.activate();
  }
}

/** Go to a line of a cell by its number, `In [3], line 12`; nowhere if it has run anew since. */
export async function goToLine(panel: NotebookPanel | null, text: string): Promise<void> {
  const [, number, line] = /^In \[(\d+)\], line (\d+)/.exec(text) ?? [];
  const cell = panel?.content.widgets.find(
    ({ model }) => isCodeCellModel(model) && model.executionCount === Number(number)
  );
  if (panel && cell) {
    await goTo(panel, cell);
    panel.content.mode = 'edit';
    await cell.ready;
    cell.editor?.setCursorPosition({ line: Number(line) - 1, column: 0 });
    cell.editor?.focus();
  }
}

/** Put code below the active cell (or into the console's prompt), where the user sees and runs it. */
export function insert(host: Host, code: string): void {
  if (host instanceof ConsolePanel) {
    host.console.replaceSelection(code);
    host.console.promptCell?.editor?.focus();
    return;
  }
  const notebook = host.content;
  NotebookActions.insertBelow(notebook);
  notebook.activeCell?.model.sharedModel.setSource(code);
  void notebook.scrollToItem(notebook.activeCellIndex, 'smart');
}

/** Put a line in a cell below the active one and run it; the line must change nothing. */
export function insertAndRun(panel: NotebookPanel, line: string): void {
  insert(panel, line);
  void NotebookActions.run(panel.content, panel.sessionContext);
}

/** Whether the active cell is one that can be traced. */
export function canTrace(host: Host | null): host is NotebookPanel {
  const model = host instanceof NotebookPanel ? host.content.activeCell?.model : null;
  return model !== null && model !== undefined && isCodeCellModel(model);
}

/** Write `%%memtrace` on the active cell's first line, if it is not there. */
export function markForTrace(panel: NotebookPanel): void {
  const model = panel.content.activeCell?.model.sharedModel;
  if (model && !model.source.trimStart().startsWith(TRACE)) {
    model.setSource(`${TRACE}\n${model.source}`);
  }
}
