/**
 * The kernels with their GPU memory in JupyterLab's panel of what runs. The entries of its own
 * section "Kernels" cannot be added to, so this is a section beside it.
 */

import type { IRunningSessions } from '@jupyterlab/running';
import type { Session } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import { clipped } from '../format.js';
import { amountOf, type IKernelRow } from '../kernels.js';
import { kernelsOf, type Front } from './front.js';
import { memoryIcon } from './icons.js';

export class RunningKernels implements IRunningSessions.IManager, IDisposable {
  constructor(
    private readonly _front: Front,
    private readonly _sessions: Session.IManager,
    private readonly _open: (path: string) => void,
    private readonly _trans: TranslationBundle
  ) {
    this.name = _trans.__('GPU memory');
    this.shutdownLabel = _trans.__('Shut down this kernel: its memory is given back');
    this.shutdownAllConfirmationText = _trans.__(
      'Shut down every kernel that holds GPU memory? Their variables are lost.'
    );
    _front.changed.connect(this._look, this);
    _sessions.runningChanged.connect(this._look, this);
  }

  readonly name: string;
  readonly shutdownLabel: string;
  readonly shutdownAllConfirmationText: string;

  /** Emitted when a kernel, or an amount as it is written, is another: not with each reading. */
  get runningChanged(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    this._front.changed.disconnect(this._look, this);
    this._sessions.runningChanged.disconnect(this._look, this);
    Signal.clearData(this);
  }

  running(): IRunningSessions.IRunningItem[] {
    return this._rows().map(row => {
      const { path } = row;
      return {
        icon: () => memoryIcon,
        label: () => clipped(row.name, 80),
        labelTitle: () => path ?? row.name,
        detail: () => amountOf(row, this._trans),
        open: path === null ? undefined : () => this._open(path),
        shutdown: () => this._shutdown(row)
      };
    });
  }

  refreshRunning(): void {
    void this._sessions.refreshRunning();
  }

  shutdownAll(): void {
    this._rows().forEach(row => this._shutdown(row));
  }

  /** Those of which an amount is known: the panel has the others in its own section. */
  private _rows(): IKernelRow[] {
    return kernelsOf(this._front, this._sessions).filter(
      ({ process, allocated }) => process !== null || allocated !== null
    );
  }

  private _shutdown(row: IKernelRow): void {
    const session = [...this._sessions.running()].find(({ kernel }) => kernel?.id === row.id);
    if (session !== undefined) {
      void this._sessions.shutdown(session.id);
    }
  }

  private _look(): void {
    const shown = this._rows()
      .map(row => `${row.id} ${row.name} ${amountOf(row, this._trans)}`)
      .join('\n');
    if (shown !== this._shown) {
      this._shown = shown;
      this._changed.emit();
    }
  }

  private _shown = '';
  private _isDisposed = false;
  private readonly _changed = new Signal<this, void>(this);
}
