/** One model for each open notebook and console, and which of them is in front. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import { ConsolePanel, type IConsoleTracker } from '@jupyterlab/console';
import { NotebookPanel, type INotebookTracker } from '@jupyterlab/notebook';
import type { Session } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import { KernelModel } from '../kernel.js';
import { kernelRows, type IKernelRow } from '../kernels.js';

/** A document with a kernel. */
export type Host = NotebookPanel | ConsolePanel;

/** What is followed: a document, and what is known of its kernel. */
export interface IFollowed {
  host: Host;
  model: KernelModel;
}

export class Front implements IDisposable {
  constructor(
    private readonly _shell: JupyterFrontEnd.IShell,
    private readonly _notebooks: INotebookTracker,
    private readonly _consoles: IConsoleTracker | null
  ) {
    _notebooks.widgetAdded.connect(this._add, this);
    _notebooks.forEach(panel => this._add(_notebooks, panel));
    _notebooks.currentChanged.connect(this._look, this);
    _consoles?.widgetAdded.connect(this._add, this);
    _consoles?.forEach(panel => this._add(_consoles, panel));
    _consoles?.currentChanged.connect(this._look, this);
    // The trackers say nothing when somebody goes from a console back to the same notebook.
    _shell.currentChanged?.connect(this._look, this);
    this._look();
  }

  /** The notebook or console in front, or the one that was last. */
  get current(): IFollowed | null {
    return this._current;
  }

  /** Emitted when another one comes to the front, and when the state of the one there changes. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Emitted with each document that is followed from now on. */
  get added(): ISignal<this, IFollowed> {
    return this._added;
  }

  /** All that are open. */
  get all(): readonly IFollowed[] {
    return [...this._followed.values()];
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._followed.forEach(({ model }) => model.dispose());
      this._followed.clear();
      this._current = null;
      Signal.clearData(this);
    }
  }

  /** Samples a second that every kernel is asked for. */
  set rate(hz: number) {
    this._rate = hz;
    this._followed.forEach(({ model }) => (model.rate = hz));
  }

  private _add(_: unknown, host: Host): void {
    const context: ISessionContext = host.sessionContext;
    const followed = { host, model: new KernelModel(context) };
    if (this._rate !== null) {
      followed.model.rate = this._rate;
    }
    this._followed.set(host, followed);
    followed.model.changed.connect(this._onState, this);
    host.disposed.connect(this._remove, this);
    this._added.emit(followed);
    this._look();
  }

  private _remove(host: Host): void {
    this._followed.get(host)?.model.dispose();
    this._followed.delete(host);
    this._look();
  }

  private _look(): void {
    const inFront = [
      this._shell.currentWidget,
      this._current?.host,
      this._notebooks.currentWidget,
      this._consoles?.currentWidget
    ];
    const found = inFront
      .map(widget => (isHost(widget) ? this._followed.get(widget) : undefined))
      .find(followed => followed !== undefined);
    if ((found ?? null) !== this._current) {
      this._current = found ?? null;
      this._changed.emit();
    }
  }

  private _onState(model: KernelModel): void {
    if (model === this._current?.model) {
      this._changed.emit();
    }
  }

  private _isDisposed = false;
  private _rate: number | null = null;
  private _current: IFollowed | null = null;
  private readonly _followed = new Map<Host, IFollowed>();
  private readonly _changed = new Signal<this, void>(this);
  private readonly _added = new Signal<this, IFollowed>(this);
}

/** Every kernel of the server, with what this page knows of it. */
export function kernelsOf(front: Front, sessions: Session.IManager): IKernelRow[] {
  const idOf = (followed: IFollowed | null): string | null =>
    followed?.model.context.session?.kernel?.id ?? null;
  const known = front.all.flatMap(followed => {
    const kernel = idOf(followed);
    return kernel === null ? [] : [{ kernel, state: followed.model.state }];
  });
  return kernelRows([...sessions.running()], known, idOf(front.current));
}

function isHost(widget: unknown): widget is Host {
  return widget instanceof NotebookPanel || widget instanceof ConsolePanel;
}
