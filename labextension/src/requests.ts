/** Asks a kernel's nbmem for what its list of requests allows, and waits for the answer. */

import { CommsOverSubshells, type Kernel } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';

import { readReply, RPC_TARGET, VERSION, type Reply, type Request } from './messages.js';

/** A request without what is the same for all or added here. */
export type Asked = Request extends infer R
  ? R extends Request
    ? Omit<R, 'nbmem' | 'id'>
    : never
  : never;

/** Why a request got no answer. */
export class NoAnswerError extends Error {
  constructor(
    readonly why: 'closed' | 'gone' | 'version',
    readonly version = 0
  ) {
    super(`no answer from nbmem: ${why}`);
  }
}

interface IWaiting {
  resolve: (reply: Reply) => void;
  reject: (error: NoAnswerError) => void;
}

/**
 * The comm for requests, opened with the first of them. It stays in the kernel's main shell, where
 * a request waits for the cell that runs: a subshell would answer at once, and its `idle` would be
 * taken for the cell's (jupyterlab #10701).
 */
export class Requests implements IDisposable {
  constructor(private readonly _kernel: Kernel.IKernelConnection) {}

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    const comm = this._comm;
    this._comm = null;
    this._rejectAll(new NoAnswerError('gone'));
    if (this._kernel.isDisposed) {
      comm?.dispose();
    } else {
      comm?.close();
    }
  }

  /** Rejects with NoAnswerError where nobody answers. */
  async ask(request: Asked): Promise<Reply> {
    const comm = this._open();
    const id = String(++this._last);
    return new Promise<Reply>((resolve, reject) => {
      this._waiting.set(id, { resolve, reject });
      comm.send({ nbmem: VERSION, id, ...request });
    });
  }

  private _open(): Kernel.IComm {
    if (this._comm !== null) {
      return this._comm;
    }
    if (this._isDisposed || this._kernel.isDisposed) {
      throw new NoAnswerError('gone');
    }
    const comm = this._kernel.createComm(RPC_TARGET);
    comm.commsOverSubshells = CommsOverSubshells.Disabled;
    comm.onMsg = message => this._answered(message.content.data);
    comm.onClose = () => {
      if (this._comm === comm) {
        this._comm = null; // the kernel has closed it
        this._rejectAll(new NoAnswerError('closed'));
      }
    };
    comm.open();
    this._comm = comm;
    return comm;
  }

  private _answered(data: unknown): void {
    const read = readReply(data);
    if (!read.ok) {
      if (read.why === 'version') {
        this._rejectAll(new NoAnswerError('version', read.version));
      }
      return;
    }
    const waiting = this._waiting.get(read.message.id);
    this._waiting.delete(read.message.id);
    waiting?.resolve(read.message);
  }

  private _rejectAll(error: NoAnswerError): void {
    const waiting = [...this._waiting.values()];
    this._waiting.clear();
    waiting.forEach(({ reject }) => reject(error));
  }

  private _isDisposed = false;
  private _last = 0;
  private _comm: Kernel.IComm | null = null;
  private readonly _waiting = new Map<string, IWaiting>();
}
