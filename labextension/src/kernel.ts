/** Follows the kernel of one notebook or console: what it pushes, and what it is asked. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import { isAllowed } from './actions.js';
import { clipped } from './format.js';
import { readPush, TARGET, type ICommand, type Reply } from './messages.js';
import { NoAnswerError, Requests, type Asked } from './requests.js';
import { afterPush, afterState, emptyState, type IKernelState, type Link } from './state.js';

const LOAD = '%load_ext nbmem';
const QUIET_MS = 300;

/**
 * The model of one session context. Pushes are taken without a handshake, so that a page reloaded
 * in the middle of a cell, and a second tab, are live at once. A kernel is asked when it rests or
 * on a click, and answers when no cell runs.
 */
export class KernelModel implements IDisposable {
  constructor(readonly context: ISessionContext) {
    this.state = emptyState({ kind: 'no-kernel' });
    context.kernelChanged.connect(this._onKernel, this);
    context.statusChanged.connect(this._onStatus, this);
    context.iopubMessage.connect(this._onIOPub, this);
    context.disposed.connect(this.dispose, this);
    this._attach(context.session?.kernel ?? null);
  }

  /** What is known; replaced, never changed. */
  state: IKernelState;

  /** Emitted when `state` was replaced. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    clearTimeout(this._timer);
    this._requests?.dispose();
    Signal.clearData(this); // both ends of every connection
  }

  /** Samples a second that the settings ask for; null leaves the kernel's own. */
  set rate(hz: number) {
    this._rate = hz;
    void this._agreeOnRate();
  }

  /** Load nbmem in the kernel; whether it is there afterwards. */
  async load(): Promise<boolean> {
    const kernel = this._kernel;
    if (kernel === null) {
      return false;
    }
    if (this.state.link.kind === 'live') {
      return true;
    }
    this._set({ ...this.state, link: { kind: 'loading' } });
    const future = kernel.requestExecute({
      code: LOAD,
      silent: true,
      store_history: false,
      allow_stdin: false
    });
    const reply = await future.done.catch(() => null);
    if (kernel !== this._kernel || this._isDisposed) {
      return false;
    }
    if (reply?.content.status === 'ok') {
      this._silence = { kind: 'too-old' };
      return this._ask();
    }
    this._silence = whyNotLoaded(reply);
    return this._say(kernel, this._silence);
  }

  /**
   * Ask nbmem for something; what it did or why not as a sentence, null where nobody answers. The
   * state is replaced where the answer is one, and asked for where something may have changed.
   */
  async request(asked: Asked): Promise<string | null> {
    const reply = await this._reply(asked);
    if (reply === null || reply.kind === 'state') {
      return null;
    }
    if (reply.kind === 'done') {
      void this._reply({ kind: 'get_state' });
    }
    return clipped(reply.sentence, 1000);
  }

  /** Tell a kernel that rests that somebody is typing a question; whether it was told. */
  expectQuestion(): boolean {
    const rests = this.state.link.kind === 'live' && this.state.cell === null;
    if (rests) {
      void this._reply({ kind: 'expect_question' });
    }
    return rests;
  }

  /** Run one of nbmem's own commands; refused here if it is not on the list. */
  async run(command: ICommand): Promise<string | null> {
    if (!isAllowed(command)) {
      return null;
    }
    return this.request({ kind: 'run_command', name: command.name, arguments: command.arguments });
  }

  private get _kernel(): Kernel.IKernelConnection | null {
    return this.context.session?.kernel ?? null;
  }

  private _onKernel(): void {
    this._attach(this._kernel);
  }

  private _attach(kernel: Kernel.IKernelConnection | null): void {
    this._requests?.dispose();
    this._requests = kernel === null ? null : new Requests(kernel);
    this._silence = NOT_LOADED;
    this._set(emptyState(kernel === null ? { kind: 'no-kernel' } : { kind: 'starting' }));
    if (kernel !== null) {
      this._onStatus(this.context, kernel.status);
    }
  }

  private _onStatus(_: ISessionContext, status: Kernel.Status): void {
    const kind = this.state.link.kind;
    if (status === 'restarting' || status === 'autorestarting') {
      // The same connection goes on; what was open in the kernel is gone.
      this._requests?.dispose();
      this._requests = this._kernel === null ? null : new Requests(this._kernel);
      this._silence = NOT_LOADED;
      this._set(emptyState({ kind: 'restarting' }));
    } else if (status === 'dead' || status === 'terminating') {
      this._set(emptyState({ kind: 'dead' }));
    } else if (status === 'busy' && kind === 'starting') {
      this._set({ ...this.state, link: { kind: 'asking', busy: true } });
    }
    if (status === 'idle' && UNKNOWN.has(this.state.link.kind)) {
      void this._ask();
    }
  }

  private _onIOPub(_: ISessionContext, message: KernelMessage.IMessage): void {
    if (message.header.msg_type === 'comm_msg') {
      this._onPush((message as KernelMessage.ICommMsgMsg).content.data);
    } else if (isEndOfCell(message) && !this.state.complete) {
      // The cell may have loaded nbmem, or have run when this page came.
      this._askSoon();
    }
  }

  private _onPush(data: unknown): void {
    const read = readPush(data);
    if (read.ok) {
      this._set(afterPush(this.state, read.message));
      if (this.state.cards.length === 0 && read.message.kind === 'cell_ended') {
        this._askSoon();
      }
    } else if (read.why === 'version' && this.state.link.kind !== 'live') {
      this._set(emptyState({ kind: 'other-version', version: read.version }));
    }
  }

  /** Ask once the kernel has been idle for a moment: with "Run All", the next cell begins at once. */
  private _askSoon(): void {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => {
      const link = this.state.link.kind;
      if (this._kernel?.status !== 'idle' || this._isDisposed) {
        return; // the end of the cell that runs now asks again
      }
      if (link === 'live') {
        void this._reply({ kind: 'get_state' });
      } else if (link !== 'loading') {
        void this._ask();
      }
    }, QUIET_MS);
  }

  /** Ask an idle kernel whether nbmem is there and what it knows. */
  private async _ask(): Promise<boolean> {
    const kernel = this._kernel;
    if (kernel === null || this._asking) {
      return false;
    }
    this._asking = true;
    try {
      const { language_info } = await kernel.info;
      if (language_info.name !== 'python') {
        return this._say(kernel, { kind: 'other-language', language: language_info.name });
      }
      const found = await kernel.requestCommInfo({ target_name: TARGET });
      const there = found.content.status === 'ok' && Object.keys(found.content.comms).length > 0;
      if (!there) {
        return this._say(kernel, this._silence);
      }
    } catch {
      return false; // the kernel went; its status says so
    } finally {
      this._asking = false;
    }
    return (await this._reply({ kind: 'get_state' }))?.kind === 'state';
  }

  /** Say why there is nothing, unless the kernel has changed or spoken since. */
  private _say(kernel: Kernel.IKernelConnection, link: Link): false {
    if (kernel === this._kernel && this.state.link.kind !== 'live') {
      this._set(emptyState(link));
    }
    return false;
  }

  private async _reply(asked: Asked): Promise<Reply | null> {
    const requests = this._requests;
    try {
      const reply = (await requests?.ask(asked)) ?? null;
      if (reply?.kind === 'state' && requests === this._requests && !this._isDisposed) {
        this._set(afterState(this.state, reply));
        void this._agreeOnRate();
      }
      return reply;
    } catch (error) {
      if (!(error instanceof NoAnswerError)) {
        throw error;
      }
      if (requests === this._requests && error.why === 'version') {
        this._set(emptyState({ kind: 'other-version', version: error.version }));
      } else if (error.why === 'closed' && this._kernel !== null) {
        this._say(this._kernel, { kind: 'too-old' });
      }
      return null;
    }
  }

  private async _agreeOnRate(): Promise<void> {
    const differs = this.state.rate !== null && this.state.rate !== this._rate;
    if (this._rate !== null && differs && this.state.cell === null) {
      this.state = { ...this.state, rate: this._rate }; // asked once
      await this._reply({ kind: 'set_rate', hz: this._rate });
    }
  }

  private _set(state: IKernelState): void {
    if (this._isDisposed) {
      return;
    }
    this._silence = state.link.kind === 'live' ? NOT_LOADED : this._silence;
    this.state = state;
    this._changed.emit();
  }

  // Why nbmem does not answer, once loading has shown it: the end of that execution asks again.
  private _silence: Link = NOT_LOADED;
  private _timer = 0;
  private _asking = false;
  private _isDisposed = false;
  private _rate: number | null = null;
  private _requests: Requests | null = null;
  private readonly _changed = new Signal<this, void>(this);
}

const NOT_LOADED: Link = { kind: 'not-loaded' };

const UNKNOWN: ReadonlySet<Link['kind']> = new Set<Link['kind']>([
  'starting',
  'restarting',
  'dead',
  'asking'
]);

function isEndOfCell(message: KernelMessage.IMessage): boolean {
  return (
    message.header.msg_type === 'status' &&
    (message as KernelMessage.IStatusMsg).content.execution_state === 'idle' &&
    (message.parent_header as KernelMessage.IHeader).msg_type === 'execute_request'
  );
}

function whyNotLoaded(reply: KernelMessage.IExecuteReplyMsg | null): Link {
  if (reply?.content.status !== 'error') {
    return NOT_LOADED; // the kernel went, or the cell before failed
  }
  const { ename, evalue } = reply.content;
  return ename === 'ModuleNotFoundError' && evalue.includes("'nbmem'")
    ? { kind: 'not-installed' }
    : { kind: 'failed', error: clipped(`${ename}: ${evalue}`) };
}
