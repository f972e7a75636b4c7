/** Draws the chart of a fit in a notebook, with or without a kernel. */

import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

import { h } from './dom.js';
import { fitChart, fitOf } from './fitchart.js';
import { keepKeys } from './keys.js';

export class FitRenderer extends Widget implements IRenderMime.IRenderer {
  constructor(private readonly _mimeType: string) {
    super();
    this.addClass('nbx-Output');
  }

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this._endKeys();
    try {
      const chart = fitChart(fitOf(model.data[this._mimeType]));
      const report = h('div', { class: 'nbx-Report' }, chart);
      this._endKeys = keepKeys(report); // the slider's arrows are JupyterLab's, too
      this.node.replaceChildren(report);
    } catch (error) {
      this.node.replaceChildren(h('p', { class: 'nbx-Words' }, (error as Error).message));
    }
    return Promise.resolve();
  }

  dispose(): void {
    this._endKeys();
    super.dispose();
  }

  private _endKeys: () => void = () => undefined;
}
