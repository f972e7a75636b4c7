/** Advice with a button: insert its code below the active cell, or let nbmem do it. */

import * as React from 'react';

import { isAllowed } from '../actions.js';
import { tryLine } from '../explorer/tips.js';
import { clipped, formatBytes } from '../format.js';
import type { ICommand, IFinding } from '../messages.js';
import { savingOf } from './report.js';
import { Section, Sentence, Trans } from './text.js';

const MOST_TIPS = 30;
const MOST_CODE = 5000;

export interface ITipActions {
  insert: (code: string) => void;
  /** Put a line in a cell below the active one and run it; null where there are no cells. */
  runLine: ((line: string) => void) | null;
  run: (command: ICommand) => void;
  mute: (rule: string, muted: boolean) => void;
}

export function Tips(props: {
  findings: IFinding[];
  tries: string[];
  muted: string[];
  busy: boolean;
  actions: ITipActions;
}): React.JSX.Element | null {
  const trans = React.useContext(Trans);
  const isMuted = (finding: IFinding): boolean => props.muted.includes(finding.rule);
  const shown = props.findings.filter(finding => !isMuted(finding)).slice(0, MOST_TIPS);
  const firstOf = (finding: IFinding): boolean =>
    props.findings.find(other => other.rule === finding.rule) === finding;
  const muted = new Set(props.findings.filter(isMuted).map(finding => finding.rule));
  if (props.findings.length === 0) {
    return null;
  }
  return (
    <Section title={trans.__('Tips')} testId="nbmem-tips" note={String(shown.length)}>
      <ul className="nbmem-Tips">
        {shown.map((finding, i) => (
          <Tip
            key={`${finding.rule}-${i}`}
            {...props}
            finding={finding}
            line={
              firstOf(finding) && props.tries.includes(finding.rule) ? tryLine(finding.rule) : null
            }
          />
        ))}
      </ul>
      {[...muted].slice(0, MOST_TIPS).map(rule => (
        <p key={rule} className="nbmem-Note nbmem-Muted" data-rule={rule}>
          {trans.__('Muted: %1', clipped(rule, 80))}
          <button
            className="nbmem-Button nbmem-mod-quiet"
            disabled={props.busy}
            onClick={() => props.actions.mute(rule, false)}
          >
            {trans.__('Show again')}
          </button>
        </p>
      ))}
    </Section>
  );
}

function Tip(props: {
  finding: IFinding;
  /** The line that tries it; null where it cannot be tried. */
  line: string | null;
  busy: boolean;
  actions: ITipActions;
}): React.JSX.Element {
  const trans = React.useContext(Trans);
  const { finding, line, actions } = props;
  const { runLine } = actions;
  const { code, command } = finding;
  const whileBusy = props.busy ? trans.__('Not while a cell runs') : undefined;
  const grounds = {
    exact: trans.__('counted'),
    simulated: trans.__('simulated'),
    estimated: trans.__('estimated')
  };
  const ground = grounds[finding.ground];
  const saves =
    finding.high === 0
      ? ground
      : trans.__('saves %1 (%2)', savingOf(finding.low, finding.high, trans), ground);
  return (
    <li className="nbmem-Tip" data-rule={finding.rule}>
      <p className="nbmem-Tip-title">
        <Sentence text={clipped(finding.title, 400)} />
      </p>
      <p className="nbmem-Tip-saves">
        {finding.measured === null
          ? saves
          : trans.__('freed %1 (measured)', formatBytes(finding.measured))}
      </p>
      <p>
        <Sentence text={clipped(finding.evidence, 600)} />
      </p>
      {code === null ? null : (
        <pre className="nbmem-Code" tabIndex={0}>
          {code.slice(0, MOST_CODE)}
        </pre>
      )}
      <div className="nbmem-Buttons">
        {command !== null && finding.measured === null && isAllowed(command) ? (
          <button
            className="nbmem-Button nbmem-mod-main"
            disabled={props.busy}
            title={whileBusy ?? `%nbmem ${[command.name, ...command.arguments].join(' ')}`}
            onClick={() => actions.run(command)}
          >
            {finding.high === 0
              ? trans.__('Free now')
              : trans.__('Free %1 now', savingOf(finding.low, finding.high, trans))}
          </button>
        ) : null}
        {line === null || runLine === null ? null : (
          <button
            className="nbmem-Button"
            disabled={props.busy}
            title={
              whileBusy ??
              trans.__(
                '%1: the cell with this change, on a virtual card; nothing here changes',
                line
              )
            }
            onClick={() => runLine(line)}
          >
            {trans.__('Try it')}
          </button>
        )}
        {code === null ? null : (
          <button className="nbmem-Button" onClick={() => actions.insert(code.slice(0, MOST_CODE))}>
            {trans.__('Add as a cell')}
          </button>
        )}
        <button
          className="nbmem-Button nbmem-mod-quiet"
          disabled={props.busy}
          title={whileBusy}
          onClick={() => actions.mute(finding.rule, true)}
          aria-label={trans.__('Do not show this advice again: %1', clipped(finding.title, 80))}
        >
          {trans.__('Mute')}
        </button>
      </div>
    </li>
  );
}
