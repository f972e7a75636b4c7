/** The item of the status bar; a click shows the sidebar. The bar draws it with each change. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import * as React from 'react';

import { statusOf } from '../status.js';
import { CommandIDs } from './commands.js';
import type { Front } from './front.js';

export class StatusItem extends ReactWidget {
  constructor(
    private readonly _front: Front,
    private readonly _commands: CommandRegistry,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('nbmem-Status');
  }

  /** Whether there is a kernel in front to speak of. */
  readonly isActive = (): boolean =>
    statusOf(this._front.current?.model.state ?? null, this._trans) !== null;

  protected render(): React.JSX.Element | null {
    const status = statusOf(this._front.current?.model.state ?? null, this._trans);
    if (status === null) {
      return null;
    }
    const { text, title, allocated, peak } = status;
    return (
      <button
        className="nbmem-Status-button"
        data-testid="nbmem-status"
        title={title}
        onClick={() => void this._commands.execute(CommandIDs.show)}
      >
        {allocated === null ? null : (
          <span className="nbmem-Status-meter" aria-hidden="true">
            <span style={{ width: `${100 * allocated}%` }} />
            {peak === null ? null : <i style={{ left: `${100 * peak}%` }} />}
          </span>
        )}
        {text}
      </button>
    );
  }
}
