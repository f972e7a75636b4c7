/** Tells a kernel as soon as a question is being typed: its answer is there some seconds earlier. */

import type { Cell } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';
import type { IDisposable } from '@lumino/disposable';

import type { Front, IFollowed } from './front.js';

/** `%%nbmem fit` and its like, from their first word on. */
const QUESTION = /^\s*%%nbmem\s/;
/** The kernel's process waits for five minutes. */
const AGAIN_MS = 240_000;

export class Questions implements IDisposable {
  constructor(private readonly _front: Front) {
    _front.all.forEach(followed => this._follow(_front, followed));
    _front.added.connect(this._follow, this);
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._front.added.disconnect(this._follow, this);
      this._undo.forEach(undo => undo());
      this._undo.clear();
    }
  }

  private _follow(_: Front, { host, model }: IFollowed): void {
    if (!(host instanceof NotebookPanel)) {
      return;
    }
    let cell: Cell | null = null;
    let told = -Infinity;
    const look = (): void => {
      const asks = cell?.isDisposed === false && QUESTION.test(cell.model.sharedModel.source);
      if (asks && performance.now() - told > AGAIN_MS && model.expectQuestion()) {
        told = performance.now();
      }
    };
    const forget = (): void => {
      if (model.state.link.kind !== 'live') {
        told = -Infinity; // another kernel, or the same one restarted
      }
    };
    const leave = (): void => {
      cell?.model?.contentChanged.disconnect(look);
    };
    const change = (): void => {
      leave();
      cell = host.content.activeCell;
      cell?.model.contentChanged.connect(look);
      look();
    };
    const undo = (): void => {
      leave();
      model.changed.disconnect(forget);
      host.content.activeCellChanged.disconnect(change);
      host.disposed.disconnect(undo);
      this._undo.delete(undo);
    };
    model.changed.connect(forget);
    host.content.activeCellChanged.connect(change);
    host.disposed.connect(undo);
    this._undo.add(undo);
    change();
  }

  private _isDisposed = false;
  private readonly _undo = new Set<() => void>();
}
