/** Draws nbmem's MIME type in a notebook: without a model, with or without a kernel. */

import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { Choice } from './choice.js';
import { unpack, type IData } from './data.js';
import { h } from './dom.js';
import type { IBokeh } from './figures.js';
import { Report } from './report.js';
import type { IActions } from './tips.js';

export const MIME = 'application/vnd.nbmem.report+json';

/** Cells whose explorer a person has opened: it is open again when they run anew. */
const open = new WeakSet<Element>();

let loaded: Promise<IBokeh> | null = null;

/** BokehJS from this extension's own chunk, fetched from the Jupyter server when first needed. */
function bokeh(): Promise<IBokeh> {
  // @ts-expect-error the minified module has no types
  loaded ??= import('@bokeh/bokehjs/build/js/bokeh.esm.min.js').then(
    (module: { default?: IBokeh }) =>
      module.default?.embed ? module.default : (module as unknown as IBokeh)
  );
  return loaded;
}

export class ReportRenderer extends Widget implements IRenderMime.IRenderer {
  constructor(
    private readonly _mimeType: string,
    private readonly _actions: IActions
  ) {
    super();
    this.addClass('nbx-Output');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const output = model.data[this._mimeType];
    const text = (output as { data?: unknown } | undefined)?.data;
    if (typeof text === 'string' && text === this._text) {
      return; // JupyterLab renders an output again when nothing but its place has changed
    }
    this._text = text;
    try {
      const data = await unpack(output);
      this._data = this.isDisposed ? null : data;
      this._show();
    } catch (error) {
      this._end();
      this.node.replaceChildren(h('p', { class: 'nbx-Words' }, (error as Error).message));
    }
  }

  dispose(): void {
    this._end();
    super.dispose();
  }

  /** An output is rendered before it is attached, and only then has a cell. */
  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._show();
  }

  private _show(): void {
    const data = this._data;
    if (data === null || !this.isAttached) {
      return;
    }
    this._data = null;
    this._end();
    const run = `${data.source} ${data.events} ${data.duration}`;
    if (run !== this._run || this._choice === null) {
      this._run = run;
      this._choice = new Choice({ moment: data.peak.event, span: null, tensor: null });
    }
    const cell = this.node.closest('.jp-Cell');
    this._report = new Report({
      data,
      choice: this._choice,
      actions: this._actions,
      bokeh,
      kernel: null,
      open: cell !== null && open.has(cell),
      opened: isOpen => cell !== null && (isOpen ? open.add(cell) : open.delete(cell))
    });
    this.node.replaceChildren(this._report.node);
  }

  private _end(): void {
    this._report?.dispose();
    this._report = null;
  }

  /** The data as they are written, of what was rendered last. */
  private _text: unknown = null;
  /** What has come and is not shown yet. */
  private _data: IData | null = null;
  private _report: Report | null = null;
  /** What tells one recording from another: a report that is renewed keeps what was chosen. */
  private _run = '';
  private _choice: Choice | null = null;
}
