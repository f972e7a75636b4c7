/** The panel: draws what is known of the kernel in front, at most once a frame, and never hidden. */

import type { Session } from '@jupyterlab/services';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import type { Message } from '@lumino/messaging';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

import { clipped } from '../format.js';
import type { ICardChoice } from '../messages.js';
import { otherProcesses, type IKernelRow } from '../kernels.js';
import { failureOf, newest, type IKernelState } from '../state.js';
import { hostOf } from '../status.js';
import { whyNothing } from '../why.js';
import { Cells } from './cells.js';
import { CommandIDs } from './commands.js';
import { findCell, goTo, insert, insertAndRun } from './document.js';
import { kernelsOf, type Front, type IFollowed } from './front.js';
import { memoryIcon } from './icons.js';
import { Kernels } from './kernels.js';
import { Now } from './now.js';
import { Others } from './others.js';
import { Ranks } from './ranks.js';
import { placeOf, Report } from './report.js';
import { Sentence, Trans } from './text.js';
import { Tips } from './tips.js';

export class SidebarPanel extends ReactWidget {
  constructor(
    private readonly _front: Front,
    private readonly _commands: CommandRegistry,
    private readonly _sessions: Session.IManager,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.id = 'nbmem-sidebar';
    this.addClass('nbmem-Sidebar');
    this.title.icon = memoryIcon;
    this.title.caption = _trans.__('GPU memory (nbmem)');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', this.title.caption);
    _front.changed.connect(this._schedule, this);
    _sessions.runningChanged.connect(this._schedule, this);
  }

  dispose(): void {
    if (!this.isDisposed) {
      cancelAnimationFrame(this._frame);
      this._front.changed.disconnect(this._schedule, this);
      this._sessions.runningChanged.disconnect(this._schedule, this);
    }
    super.dispose();
  }

  /** How often it was drawn, for tests of what a hidden panel costs. */
  drawn = 0;

  protected onBeforeShow(message: Message): void {
    super.onBeforeShow(message);
    this.update();
  }

  protected render(): React.JSX.Element {
    this.drawn += 1;
    return (
      <Trans.Provider value={this._trans}>
        <View
          followed={this._front.current}
          kernels={kernelsOf(this._front, this._sessions)}
          say={sentence => this._say(sentence)}
          said={this._said}
          execute={(id, args) => void this._commands.execute(id, args)}
        />
      </Trans.Provider>
    );
  }

  private _say(sentence: string | null): void {
    this._said = sentence;
    this._schedule();
  }

  private _schedule(): void {
    if (this._frame === 0 && this.isVisible) {
      this._frame = requestAnimationFrame(() => {
        this._frame = 0;
        if (this.isVisible) {
          this.update();
        }
      });
    }
  }

  private _frame = 0;
  private _said: string | null = null;
}

interface IViewProps {
  followed: IFollowed | null;
  kernels: IKernelRow[];
  said: string | null;
  say: (sentence: string | null) => void;
  execute: (command: string, args?: ReadonlyPartialJSONObject) => void;
}

function View(props: IViewProps): React.JSX.Element {
  const { followed, say } = props;
  const state = followed?.model.state ?? null;
  return (
    <div
      className="nbmem-View"
      data-testid="nbmem-sidebar"
      data-link={state?.link.kind ?? 'nothing-open'}
      data-reading={state === null ? '' : (newest(state)?.t_ms ?? '')}
    >
      <Header {...props} state={state} />
      {state === null ? null : <Failure sentence={failureOf(state)} />}
      {props.said === null ? null : <Said sentence={props.said} done={() => say(null)} />}
      <Nothing {...props} state={state} />
      {state === null || followed === null ? null : (
        <Body state={state} followed={followed} kernels={props.kernels} say={say} />
      )}
      <Kernels rows={props.kernels} open={path => props.execute('docmanager:open', { path })} />
    </div>
  );
}

function Header(props: IViewProps & { state: IKernelState | null }): React.JSX.Element {
  const trans = React.useContext(Trans);
  const { state, followed } = props;
  const busy = state !== null && state.cell !== null;
  const isLive = state?.link.kind === 'live';
  return (
    <div className="nbmem-Header">
      <div className="nbmem-Header-title">
        <h2 title={followed?.host.title.label}>
          {followed?.host.title.label ?? trans.__('GPU memory')}
        </h2>
        <Running state={state} />
      </div>
      {isLive ? (
        <div className="nbmem-Buttons">
          <button className="nbmem-Button" onClick={() => props.execute(CommandIDs.traceCell)}>
            {trans.__('Trace this cell')}
          </button>
          {hostOf(newest(state)) !== null ? null : (
            <button
              className="nbmem-Button"
              disabled={busy}
              onClick={() => props.execute(CommandIDs.freeCache)}
            >
              {trans.__('Free cached memory')}
            </button>
          )}
        </div>
      ) : null}
    </div>
  );
}

/** Which cell runs, and where it is. */
function Running(props: { state: IKernelState | null }): React.JSX.Element {
  const trans = React.useContext(Trans);
  const { state } = props;
  if (state === null || state.link.kind !== 'live') {
    return <p className="nbmem-Running">&nbsp;</p>;
  }
  const { cell } = state;
  if (cell === null) {
    return <p className="nbmem-Running">{trans.__('no cell runs')}</p>;
  }
  const sample = newest(state);
  const isOfCell = sample !== null && sample.cell.begun_ms === cell.begun_ms;
  const where = isOfCell ? placeOf(sample.phase, sample.step, trans.__.bind(trans)) : '';
  const name = cell.number === null ? trans.__('a cell') : `In [${cell.number}]`;
  return (
    <p className="nbmem-Running nbmem-mod-busy" data-testid="nbmem-running">
      {[name, where || trans.__('running')].join(': ')}
    </p>
  );
}

/** That memory ran out, above all else; what to do about it is under the cell and in the tips. */
function Failure(props: { sentence: string | null }): React.JSX.Element | null {
  return props.sentence === null ? null : (
    <p className="nbmem-Failure" role="status" data-testid="nbmem-failure">
      <Sentence text={clipped(props.sentence, 400)} />
    </p>
  );
}

function Said(props: { sentence: string; done: () => void }): React.JSX.Element {
  const trans = React.useContext(Trans);
  return (
    <p className="nbmem-Said" role="status" data-testid="nbmem-said">
      <span>{props.sentence}</span>
      <button
        className="nbmem-Button nbmem-mod-quiet"
        aria-label={trans.__('Close this message')}
        onClick={props.done}
      >
        ×
      </button>
    </p>
  );
}

function Nothing(props: IViewProps & { state: IKernelState | null }): React.JSX.Element | null {
  const trans = React.useContext(Trans);
  const reason = whyNothing(props.state, trans);
  if (reason === null) {
    return null;
  }
  return (
    <div className="nbmem-Nothing" data-testid="nbmem-nothing">
      <p role="status">{reason.sentence}</p>
      {reason.offer === 'load' ? (
        <button
          className="nbmem-Button nbmem-mod-main"
          data-testid="nbmem-load"
          onClick={() => props.execute(CommandIDs.load)}
        >
          {trans.__('Load nbmem')}
        </button>
      ) : null}
    </div>
  );
}

function Body(props: {
  state: IKernelState;
  followed: IFollowed;
  kernels: IKernelRow[];
  say: (sentence: string | null) => void;
}): React.JSX.Element {
  const { state, say } = props;
  const { host, model } = props.followed;
  const said = (asked: Promise<string | null>): void => void asked.then(say);
  const menu = (
    <VirtualCard
      state={state}
      choose={card => said(model.request({ kind: 'choose_card', card }))}
    />
  );
  return (
    <>
      {newest(state) === null ? menu : null}
      <Now state={state} />
      {state.ranks === null ? null : <Ranks ranks={state.ranks} />}
      <Tips
        findings={state.report?.findings ?? []}
        tries={state.report?.tries ?? []}
        muted={state.muted}
        busy={state.cell !== null}
        actions={{
          insert: code => insert(host, code),
          runLine: 'console' in host ? null : line => insertAndRun(host, line),
          run: command => said(model.run(command)),
          mute: (rule, muted) => said(model.request({ kind: 'mute_rule', rule, muted }))
        }}
      />
      <Cells
        cells={state.cells}
        isHere={cell => findCell(host, cell) !== null}
        goTo={cell => {
          const found = findCell(host, cell);
          if (found) {
            void goTo(host, found);
          }
        }}
      />
      {state.report === null ? null : <Report report={state.report} />}
      {newest(state) === null ? null : menu}
      <Others
        processes={otherProcesses(state.processes, props.kernels)}
        several={state.cards.length > 1}
      />
      {state.notes.map(note => (
        <p key={note} className="nbmem-Note">
          {note}
        </p>
      ))}
    </>
  );
}

/** The menu of virtual cards, where one may be put in now. */
function VirtualCard(props: {
  state: IKernelState;
  choose: (card: string) => void;
}): React.JSX.Element | null {
  const trans = React.useContext(Trans);
  const { choices, cards } = props.state;
  if (choices.length === 0) {
    return null;
  }
  const used = cards.find(card => card.virtual);
  const key = choices.find(choice => choice.name === used?.name)?.key ?? 'off';
  return (
    <label className="nbmem-VirtualCard">
      {trans.__('Virtual card')}
      <select
        data-testid="nbmem-virtual-card"
        value={key}
        disabled={props.state.cell !== null}
        onChange={event => props.choose(event.currentTarget.value)}
      >
        <option value="off">{trans.__('none')}</option>
        {choices.map((choice: ICardChoice) => (
          <option key={choice.key} value={choice.key}>
            {choice.key}
          </option>
        ))}
      </select>
    </label>
  );
}
