/** Draws nbmem's MIME type in a notebook: without a model, with or without a kernel. */

import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

import { Choice } from './choice.js';
import { unpack } from './data.js';
import { h } from './dom.js';
import { Explorer } from './explorer.js';
import type { IBokeh } from './figures.js';
import type { IActions } from './tips.js';

export const MIME = 'application/vnd.nbmem.report+json';

let loaded: Promise<IBokeh> | null = null;

/** BokehJS from this extension's own chunk, fetched from the Jupyter server when first needed. */
function bokeh(): Promise<IBokeh> {
  // @ts-expect-error the minified module has no types
  loaded ??= import('@bokeh/bokehjs/build/js/bokeh.esm.min.js').then(
    (module: { default?: IBokeh }) =>
      module.default?.embed ? module.default : (module as unknown as IBokeh)
  );
  return loaded as Promise<IBokeh>;
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
    this._explorer?.dispose();
    this._explorer = null;
    try {
      const data = await unpack(model.data[this._mimeType]);
      if (this.isDisposed) {
        return;
      }
      const choice = new Choice({ moment: data.peak.event, span: null, tensor: null });
      this._explorer = new Explorer(data, choice, this._actions, bokeh);
      this.node.replaceChildren(this._explorer.node);
    } catch (error) {
      this.node.replaceChildren(h('p', { class: 'nbx-Words' }, (error as Error).message));
    }
  }

  dispose(): void {
    this._explorer?.dispose();
    super.dispose();
  }

  private _explorer: Explorer | null = null;
}
