/** The renderer of nbmem's own output: what a traced cell leaves in the notebook. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';

import { CommandIDs } from '../sidebar/commands.js';
import { goToLine, insert, insertAndRun } from '../sidebar/document.js';
import { FIT_MIME } from './fitchart.js';
import { FitRenderer } from './fitrenderer.js';
import { OOM_MIME } from './oomcard.js';
import { OomRenderer } from './oomrenderer.js';
import { MIME, ReportRenderer } from './renderer.js';
import { NO_ACTIONS, type IActions } from './tips.js';

export const explorer: JupyterFrontEndPlugin<void> = {
  id: 'nbmem-labextension:explorer',
  description: "Draws nbmem's saved reports, with or without a kernel.",
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [INotebookTracker],
  activate: (
    app: JupyterFrontEnd,
    rendermime: IRenderMimeRegistry,
    tracker: INotebookTracker | null
  ): void => {
    rendermime.addFactory({
      safe: true, // it makes no markup of what it is given, and draws only nbmem's own figures
      mimeTypes: [MIME],
      defaultRank: 40, // before text/html, which has 50
      createRenderer: options => new ReportRenderer(options.mimeType, actionsOf(app, tracker))
    });
    rendermime.addFactory({
      safe: true, // texts alone
      mimeTypes: [OOM_MIME],
      defaultRank: 40,
      createRenderer: options => new OomRenderer(options.mimeType, actionsOf(app, tracker))
    });
    rendermime.addFactory({
      safe: true, // texts and a picture, in which nothing runs
      mimeTypes: [FIT_MIME],
      defaultRank: 40,
      createRenderer: options => new FitRenderer(options.mimeType)
    });
  }
};

/** What a tip's buttons do here: code is shown in a cell, and the user runs it. */
function actionsOf(app: JupyterFrontEnd, tracker: INotebookTracker | null): IActions {
  if (tracker === null) {
    return NO_ACTIONS;
  }
  const put = (code: string): void => {
    if (tracker.currentWidget !== null) {
      insert(tracker.currentWidget, code);
    }
  };
  return {
    insert: put,
    run: line => {
      const panel = tracker.currentWidget;
      if (panel !== null) {
        insertAndRun(panel, line);
      }
    },
    goTo: line => void goToLine(tracker.currentWidget, line),
    freeCache: app.commands.hasCommand(CommandIDs.freeCache)
      ? () => void app.commands.execute(CommandIDs.freeCache)
      : null
  };
}
