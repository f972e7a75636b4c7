/** Draws the chart of a fit in a notebook, with or without a kernel. */

import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

import { h } from './dom.js';
import { fitChart, fitOf } from './fitchart.js';

export class FitRenderer extends Widget implements IRenderMime.IRenderer {
  constructor(private readonly _mimeType: string) {
    super();
    this.addClass('nbx-Output');
  }

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    try {
      const chart = fitChart(fitOf(model.data[this._mimeType]));
      this.node.replaceChildren(h('div', { class: 'nbx-Report' }, chart));
    } catch (error) {
      this.node.replaceChildren(h('p', { class: 'nbx-Words' }, (error as Error).message));
    }
    return Promise.resolve();
  }
}
