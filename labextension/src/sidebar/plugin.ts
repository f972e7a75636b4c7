/** The sidebar's plugin. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Widget } from '@lumino/widgets';

export const sidebar: JupyterFrontEndPlugin<void> = {
  id: 'nbmem-labextension:sidebar',
  description: 'The memory of the GPU beside the notebook, live.',
  autoStart: true,
  activate: (app: JupyterFrontEnd): void => {
    const panel = new Widget();
    panel.id = 'nbmem-sidebar';
    panel.title.caption = 'GPU memory (nbmem)';
    app.shell.add(panel, 'right', { rank: 900, type: 'nbmem' });
  }
};
