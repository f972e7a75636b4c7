/** A small badge at each cell that has run: its peak and what it kept. */

import { CodeCell, type Cell } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';

import { exactBytes, formatBytes, formatPeak } from '../format.js';
import type { ICellEnded } from '../messages.js';
import { findCell } from './document.js';
import type { Front, IFollowed } from './front.js';

const CLASS = 'nbmem-Badge';

export class Badges implements IDisposable {
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

  /** Take every badge off. */
  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._front.added.disconnect(this._follow, this);
    this._undo.forEach(undo => undo());
    this._undo.clear();
  }

  private _follow(_: Front, followed: IFollowed): void {
    const { host, model } = followed;
    if (!(host instanceof NotebookPanel)) {
      return;
    }
    let shown: readonly ICellEnded[] = [];
    const draw = (): void => {
      const { cells } = model.state;
      if (cells !== shown) {
        shown = cells;
        this._draw(host, cells);
      }
    };
    model.changed.connect(draw);
    const undo = (): void => {
      model.changed.disconnect(draw);
      host.disposed.disconnect(undo);
      this._undo.delete(undo);
      if (!host.isDisposed) {
        host.content.widgets.forEach(remove);
      }
    };
    this._undo.add(undo);
    host.disposed.connect(undo);
    draw();
  }

  private _draw(host: NotebookPanel, cells: readonly ICellEnded[]): void {
    const latest = new Map<Cell, ICellEnded>();
    for (const ended of cells) {
      const cell = findCell(host, ended.cell);
      if (cell !== null) {
        latest.set(cell, ended);
      }
    }
    for (const cell of host.content.widgets) {
      const ended = latest.get(cell);
      if (ended === undefined || !(cell instanceof CodeCell)) {
        remove(cell);
      } else {
        this._put(cell, ended);
      }
    }
  }

  private _put(cell: CodeCell, ended: ICellEnded): void {
    const { delta } = ended;
    const peak = delta?.peak ?? null;
    const kept = delta === null ? null : delta.allocated_after - delta.allocated_before;
    const parts = [
      peak === null ? '' : this._trans.__('peak %1', formatPeak(peak.allocated, peak.exact)),
      kept ? this._trans.__('kept %1', formatBytes(kept, true)) : ''
    ].filter(part => part !== '');
    if (parts.length === 0) {
      remove(cell);
      return;
    }
    const badge = badgeOf(cell) ?? document.createElement('div');
    badge.className = CLASS;
    badge.textContent = parts.join(' · ');
    badge.title = this._trans.__(
      'GPU memory of this cell: peak %1',
      peak === null ? exactBytes(null) : formatPeak(peak.allocated, peak.exact, exactBytes)
    );
    const wrapper = cell.node.querySelector('.jp-Cell-inputWrapper');
    if (badge.parentElement !== wrapper) {
      wrapper?.append(badge);
    }
  }

  private _isDisposed = false;
  private readonly _undo = new Set<() => void>();
}

function badgeOf(cell: Cell): HTMLElement | null {
  return cell.node.querySelector<HTMLElement>(`.${CLASS}`);
}

function remove(cell: Cell): void {
  badgeOf(cell)?.remove();
}
