/** What JupyterLab loads: the sidebar and the renderer of saved reports. */

import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { explorer } from './explorer/index.js';
import { sidebar } from './sidebar/plugin.js';

const plugins: JupyterFrontEndPlugin<void>[] = [sidebar, explorer];

export default plugins;
