/** The sidebar's plugin: puts the parts together, and follows the settings. */

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';

import { LEAST_HZ, MOST_HZ, USUAL_HZ } from '../messages.js';
import { Badges } from './badges.js';
import { addCommands, type ISwitch } from './commands.js';
import { Front } from './front.js';
import { LineMarks } from './linemarks.js';
import { SidebarPanel } from './panel.js';
import { Questions } from './questions.js';
import { RunningKernels } from './running.js';
import { StatusItem } from './statusbar.js';

const ID = 'nbmem-labextension:sidebar';

export const sidebar: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: 'The memory of the GPU beside the notebook, live.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [
    IConsoleTracker,
    ICommandPalette,
    ISettingRegistry,
    ILayoutRestorer,
    ITranslator,
    IStatusBar,
    IRunningSessionManagers
  ],
  activate: (
    app: JupyterFrontEnd,
    notebooks: INotebookTracker,
    consoles: IConsoleTracker | null,
    palette: ICommandPalette | null,
    settings: ISettingRegistry | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null,
    statusBar: IStatusBar | null,
    managers: IRunningSessionManagers | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('nbmem');
    const front = new Front(app.shell, notebooks, consoles);
    const panel = new SidebarPanel(front, app.commands, app.serviceManager.sessions, trans);
    const questions = new Questions(front);
    const badges = new Shown(() => new Badges(front, trans));
    const lines = new Shown(() => new LineMarks(front, trans));
    const commands = addCommands(app, front, panel.id, badges, lines, palette, trans);

    const follow = (chosen: ISettingRegistry.ISettings | null): void => {
      badges.show(chosen?.get('badges').composite !== false);
      lines.show(chosen?.get('lines').composite !== false);
      const hz = chosen?.get('samplesPerSecond').composite;
      front.rate = typeof hz === 'number' ? Math.min(Math.max(hz, LEAST_HZ), MOST_HZ) : USUAL_HZ;
    };
    settings?.load(ID).then(
      chosen => {
        follow(chosen);
        badges.toggle = () => void chosen.set('badges', !badges.isOn());
        lines.toggle = () => void chosen.set('lines', !lines.isOn());
        chosen.changed.connect(follow);
        panel.disposed.connect(() => chosen.changed.disconnect(follow));
      },
      () => follow(null)
    );
    if (settings === null) {
      follow(null);
    }

    panel.disposed.connect(() => {
      commands.dispose();
      badges.show(false);
      lines.show(false);
      questions.dispose();
      front.dispose();
    });
    if (statusBar !== null) {
      const item = new StatusItem(front, app.commands, trans);
      statusBar.registerStatusItem(`${ID}-status`, {
        item,
        align: 'left',
        rank: 3, // after terminals, kernels and the kernel's state
        priority: 1, // is shown when the window is narrow, too
        isActive: item.isActive,
        activeStateChanged: front.changed
      });
    }
    if (managers !== null) {
      const open = (path: string): void => void app.commands.execute('docmanager:open', { path });
      const kernels = new RunningKernels(front, app.serviceManager.sessions, open, trans);
      const added = managers.add(kernels);
      panel.disposed.connect(() => {
        added.dispose();
        kernels.dispose();
      });
    }
    app.shell.add(panel, 'right', { rank: 900, type: 'nbmem' });
    restorer?.add(panel, panel.id);
  }
};

/** Something that is there while a setting says so. */
class Shown implements ISwitch {
  constructor(private readonly _make: () => IDisposable) {}

  toggle = (): void => undefined;

  isOn = (): boolean => this._made !== null;

  show(wanted: boolean): void {
    if (wanted !== this.isOn()) {
      this._made?.dispose();
      this._made = wanted ? this._make() : null;
    }
  }

  private _made: IDisposable | null = null;
}
