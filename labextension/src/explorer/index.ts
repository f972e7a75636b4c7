/** The renderer of nbmem's own output: what a traced cell leaves in the notebook. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';

export const explorer: JupyterFrontEndPlugin<void> = {
  id: 'nbmem-labextension:explorer',
  description: "Draws nbmem's saved reports, with or without a kernel.",
  autoStart: true,
  requires: [IRenderMimeRegistry],
  activate: (_app: JupyterFrontEnd, _rendermime: IRenderMimeRegistry): void => undefined
};
