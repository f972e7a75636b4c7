/** Draws the card of an out-of-memory error in a notebook, and folds the traceback before it. */

import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { h } from './dom.js';
import { keepKeys } from './keys.js';
import { oomCard, oomOf, tracebackBefore } from './oomcard.js';
import type { IActions } from './tips.js';

export class OomRenderer extends Widget implements IRenderMime.IRenderer {
  constructor(
    private readonly _mimeType: string,
    private readonly _actions: IActions
  ) {
    super();
    this.addClass('nbx-Output');
  }

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this._output = model.data[this._mimeType];
    this._show();
    return Promise.resolve();
  }

  dispose(): void {
    this._end();
    super.dispose();
  }

  /** An output is rendered before it is attached, and only then has a traceback before it. */
  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._show();
  }

  private _show(): void {
    if (!this.isAttached || this._output === null) {
      return;
    }
    this._end();
    try {
      const traceback = tracebackBefore(this.node);
      const card = oomCard(oomOf(this._output), this._actions, traceback);
      const report = h('div', { class: 'nbx-Report' }, card);
      const endKeys = keepKeys(report);
      this._release = () => {
        endKeys();
        traceback?.release();
      };
      this.node.replaceChildren(report);
    } catch (error) {
      this.node.replaceChildren(h('p', { class: 'nbx-Words' }, (error as Error).message));
    }
  }

  private _end(): void {
    this._release();
    this._release = () => undefined;
  }

  private _output: unknown = null;
  private _release: () => void = () => undefined;
}
