/** The commands: each in the palette, some in the notebook's toolbar and with a shortcut. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Notification, type ICommandPalette } from '@jupyterlab/apputils';
import { NotebookActions } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import { DisposableDelegate, DisposableSet, type IDisposable } from '@lumino/disposable';

import { whyNothing } from '../why.js';
import { canTrace, markForTrace } from './document.js';
import type { Front } from './front.js';
import { freeIcon, memoryIcon } from './icons.js';

export namespace CommandIDs {
  export const show = 'nbmem:show';
  export const load = 'nbmem:load';
  export const traceCell = 'nbmem:trace-cell';
  export const freeCache = 'nbmem:free-cache';
  export const toggleBadges = 'nbmem:toggle-badges';
  export const toggleLines = 'nbmem:toggle-lines';
}

/** Without it, a notification waits unseen in the notification centre. */
const SHOWN_MS = 8000;

/** Something that is shown or not. */
export interface ISwitch {
  isOn: () => boolean;
  toggle: () => void;
}

/** Put the commands in; disposing takes them out. */
export function addCommands(
  app: JupyterFrontEnd,
  front: Front,
  panelId: string,
  badges: ISwitch,
  lines: ISwitch,
  palette: ICommandPalette | null,
  trans: TranslationBundle
): IDisposable {
  const added = new DisposableSet();
  const add = (id: string, options: CommandRegistry.ICommandOptions): void => {
    added.add(app.commands.addCommand(id, options));
    const item = palette?.addItem({ command: id, category: trans.__('GPU memory (nbmem)') });
    if (item) {
      added.add(item);
    }
  };
  const none = { type: 'object', properties: {} } as const;

  add(CommandIDs.show, {
    label: trans.__('Show GPU Memory'),
    caption: trans.__('Show what is on the GPU, beside the notebook'),
    icon: memoryIcon,
    describedBy: { args: none },
    execute: () => app.shell.activateById(panelId)
  });
  add(CommandIDs.load, {
    label: trans.__('Load nbmem in This Kernel'),
    isEnabled: () => front.current?.model.context.session?.kernel != null,
    describedBy: { args: none },
    execute: async () => {
      await loaded(front, trans);
    }
  });
  add(CommandIDs.traceCell, {
    label: trans.__('Trace This Cell'),
    caption: trans.__('Run this cell with %%memtrace on its first line: its memory, byte by byte'),
    icon: memoryIcon,
    isEnabled: () => canTrace(front.current?.host ?? null),
    describedBy: { args: none },
    execute: async () => {
      const host = front.current?.host ?? null;
      if (canTrace(host)) {
        const cell = host.content.activeCell;
        if ((await loaded(front, trans)) && cell === host.content.activeCell) {
          markForTrace(host);
          await NotebookActions.run(host.content, host.sessionContext);
        }
      }
    }
  });
  add(CommandIDs.freeCache, {
    label: trans.__('Free Cached Memory'),
    caption: trans.__('Give the cached, unused memory of this kernel back to the GPU'),
    icon: freeIcon,
    isEnabled: () => front.current?.model.state.link.kind === 'live',
    describedBy: { args: none },
    execute: async () => {
      const sentence = await front.current?.model.run({ name: 'free', arguments: ['cache'] });
      if (sentence) {
        Notification.info(sentence, { autoClose: SHOWN_MS });
      }
    }
  });
  add(CommandIDs.toggleBadges, {
    label: trans.__('Show Memory Badges at Cells'),
    isToggled: badges.isOn,
    describedBy: { args: none },
    execute: () => badges.toggle()
  });
  add(CommandIDs.toggleLines, {
    label: trans.__('Show Memory Beside the Lines of Traced Cells'),
    isToggled: lines.isOn,
    describedBy: { args: none },
    execute: () => lines.toggle()
  });
  // Buttons ask again whether a command is enabled only when they are told to.
  let known = '';
  const notify = (): void => {
    const current = front.current;
    const now = `${current?.host.id} ${current?.model.state.link.kind}`;
    if (now !== known) {
      known = now;
      [CommandIDs.load, CommandIDs.traceCell, CommandIDs.freeCache].forEach(id =>
        app.commands.notifyCommandChanged(id)
      );
    }
  };
  front.changed.connect(notify);
  added.add(new DisposableDelegate(() => front.changed.disconnect(notify)));
  return added;
}

/** Load nbmem in the kernel in front if it is not there; if it cannot be, say why. */
async function loaded(front: Front, trans: TranslationBundle): Promise<boolean> {
  const model = front.current?.model;
  if (!model) {
    return false;
  }
  if (await model.load()) {
    return true;
  }
  const reason = whyNothing(model.state, trans);
  if (reason) {
    Notification.warning(reason.sentence, { autoClose: SHOWN_MS });
  }
  return false;
}
