/** Asks a kernel's nbmem for what its list of requests allows, and waits for the answer. */

import type { Kernel } from '@jupyterlab/services';
import type { JSONObject } from '@lumino/coreutils';
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

const SUBSHELL_WAIT_MS = 3000;

/**
 * The comm for requests, opened with the first of them. It is not the comm that pushes: ipykernel
 * answers a comm on the shell that last sent on it, so requests there would wait for the cell.
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
    this._drop('gone');
  }

  /** Rejects with NoAnswerError where nobody answers. */
  async ask(request: Asked): Promise<Reply> {
    const comm = await this._open();
    if (this._isDisposed || comm.isDisposed) {
      throw new NoAnswerError('gone');
    }
    const id = String(++this._last);
    return new Promise<Reply>((resolve, reject) => {
      this._waiting.set(id, { resolve, reject });
      comm.send({ nbmem: VERSION, id, ...request } as unknown as JSONObject);
    });
  }

  private _open(): Promise<Kernel.IComm> {
    if (this._comm === null) {
      this._comm = this._opened();
      this._comm.catch(() => {
        this._comm = null;
      });
    }
    return this._comm;
  }

  private async _opened(): Promise<Kernel.IComm> {
    const comm = this._kernel.createComm(RPC_TARGET);
    this._handler = comm;
    comm.onMsg = message => this._answered(message.content.data);
    comm.onClose = () => {
      if (this._handler === comm) {
        this._handler = null; // the kernel has closed it
        this._drop('closed');
      }
    };
    if (this._kernel.supportsSubshells) {
      // Before it has started, messages go to the main shell, where they wait for the cell.
      const { subshellStarted } = comm as { subshellStarted?: Promise<void> };
      await Promise.race([subshellStarted, waited(SUBSHELL_WAIT_MS)]);
    }
    if (this._isDisposed || comm.isDisposed) {
      throw new NoAnswerError('gone');
    }
    comm.open();
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

  private _drop(why: 'closed' | 'gone'): void {
    const comm = this._handler;
    this._handler = null;
    this._comm = null;
    this._rejectAll(new NoAnswerError(why));
    if (comm !== null && !comm.isDisposed) {
      if (this._kernel.isDisposed) {
        comm.dispose();
      } else {
        comm.close();
      }
    }
  }

  private _rejectAll(error: NoAnswerError): void {
    const waiting = [...this._waiting.values()];
    this._waiting.clear();
    waiting.forEach(({ reject }) => reject(error));
  }

  private _isDisposed = false;
  private _last = 0;
  private _comm: Promise<Kernel.IComm> | null = null;
  private _handler: Kernel.IComm | null = null;
  private readonly _waiting = new Map<string, IWaiting>();
}

function waited(ms: number): Promise<void> {
  return new Promise(resolve => setTimeout(resolve, ms));
}
