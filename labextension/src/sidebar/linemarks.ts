/** Beside each line of a traced cell, in its editor, what it took: read from the cell's own report. */

import { CodeCell } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { EditorView } from '@codemirror/view';
import type { IDisposable } from '@lumino/disposable';

import { unpack, type ILines } from '../explorer/data.js';
import { h } from '../explorer/dom.js';
import { MIME } from '../explorer/renderer.js';
import { exactBytes, formatBytes } from '../format.js';
import { linesIn, mark, type ILineBytes } from '../gutter.js';
import type { Front, IFollowed } from './front.js';

export class LineMarks implements IDisposable {
  constructor(
    private readonly _front: Front,
    private readonly _trans: TranslationBundle
  ) {
    _front.all.forEach(followed => this._follow(_front, followed));
    _front.added.connect(this._follow, this);
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Take every mark off. */
  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._front.added.disconnect(this._follow, this);
      this._undo.forEach(undo => undo());
      this._undo.clear();
    }
  }

  private _follow(_: Front, { host }: IFollowed): void {
    if (!(host instanceof NotebookPanel)) {
      return;
    }
    const cells = new Map<CodeCell, CellMarks>();
    const renew = (): void => {
      const there = new Set<unknown>(host.content.widgets);
      cells.forEach((marks, cell) => {
        if (!there.has(cell)) {
          marks.dispose();
          cells.delete(cell);
        }
      });
      for (const cell of host.content.widgets) {
        if (cell instanceof CodeCell && !cells.has(cell)) {
          cells.set(cell, new CellMarks(cell, this._trans));
        }
      }
    };
    const { content } = host;
    let model = content.model;
    const change = (): void => {
      model?.cells.changed.disconnect(renew);
      model = content.model;
      model?.cells.changed.connect(renew);
      renew();
    };
    const undo = (): void => {
      model?.cells.changed.disconnect(renew);
      content.modelChanged.disconnect(change);
      host.disposed.disconnect(undo);
      cells.forEach(marks => marks.dispose());
      this._undo.delete(undo);
    };
    content.modelChanged.connect(change);
    host.disposed.connect(undo);
    this._undo.add(undo);
    change();
  }

  private _isDisposed = false;
  private readonly _undo = new Set<() => void>();
}

/** The marks of one cell: anew with every report among its outputs, gone with it. */
class CellMarks implements IDisposable {
  constructor(
    private readonly _cell: CodeCell,
    private readonly _trans: TranslationBundle
  ) {
    _cell.model.outputs.changed.connect(this._read, this);
    this._read();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    this._cell.model?.outputs.changed.disconnect(this._read, this);
    this._show([]);
  }

  private _read(): void {
    const { outputs } = this._cell.model;
    let output: unknown = null;
    for (let i = 0; i < outputs.length; i++) {
      output = outputs.get(i).data[MIME] ?? output;
    }
    const data = (output as { data?: unknown } | null)?.data ?? null;
    if (data !== this._data) {
      this._data = data;
      if (data === null) {
        this._show([]);
      } else {
        void this._mark(data, output); // those of a report that is renewed stand until then
      }
    }
  }

  private async _mark(data: unknown, output: unknown): Promise<void> {
    let lines: ILines | null = null;
    try {
      await this._cell.ready; // an editor is there when the cell has come into view
      lines = (await unpack(output)).lines;
    } catch {
      // The report itself says why it cannot be read.
    }
    if (this._data === data && !this._isDisposed) {
      const text = this._cell.model.sharedModel.source.split('\n');
      this._show(lines === null ? [] : linesIn(text, lines));
    }
  }

  private _show(lines: readonly ILineBytes[]): void {
    const host = this._cell.isDisposed ? null : this._cell.editor?.host;
    const view = host ? EditorView.findFromDOM(host) : null;
    const most = Math.max(1, ...lines.map(({ peak }) => peak));
    if (view !== null) {
      const marks = lines.map(row => ({ line: row.line, draw: () => this._draw(row, most) }));
      mark(view, marks);
    }
  }

  private _draw({ peak, kept, taken }: ILineBytes, most: number): HTMLElement {
    const title = this._trans.__(
      'This line of the traced run: %1 alive at the peak, %2 at the end, %3 taken in all',
      exactBytes(peak),
      exactBytes(kept),
      exactBytes(taken)
    );
    const share = `--nbmem-share: ${Math.round((100 * peak) / most)}%`;
    return h(
      'div',
      { class: 'nbmem-LineMark', title },
      h('span', { class: 'nbmem-mod-peak', style: share }, peak ? formatBytes(peak) : ''),
      h('span', { class: 'nbmem-mod-kept' }, kept ? formatBytes(kept, true) : '')
    );
  }

  private _isDisposed = false;
  private _data: unknown = null;
}
