/** The last report: the card at the peak, and the phases. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { clipped, formatBytes, formatMs } from '../format.js';
import type { ILastReport, IPhase } from '../messages.js';
import { OTHER_TINT, PHASE_TINTS, TINT_INK } from '../palette.js';
import { CardBar, PartsTable } from './bar.js';
import { Bytes, Section, Sentence, Trans } from './text.js';

const SHOWN = 8;
const MOST_PARTS = 64;

export function Report(props: { report: ILastReport }): React.JSX.Element {
  const trans = React.useContext(Trans);
  const { report } = props;
  const { peak } = report;
  const parts = report.at_peak
    .slice(0, MOST_PARTS)
    .map(([key, label, bytes]) => ({ key, label, bytes }))
    .filter(part => part.bytes > 0);
  const total = report.device.total ?? parts.reduce((sum, part) => sum + part.bytes, 0);
  const where = placeOf(peak.at.phase, peak.at.step, trans.__.bind(trans));
  return (
    <Section
      title={trans.__('Last report')}
      testId="nbmem-report"
      note={`${clipped(report.title, 40)}, ${formatMs(report.duration_ms)}`}
    >
      <p className="nbmem-Verdict" data-testid="nbmem-verdict" data-bytes={peak.allocated}>
        <Sentence text={clipped(report.verdict, 400)} />
      </p>
      {report.error && !report.verdict.startsWith(report.error) ? (
        <p className="nbmem-Trouble">{clipped(report.error)}</p>
      ) : null}
      <p>
        {trans.__('Most allocated')}{' '}
        <strong>
          <Bytes count={peak.allocated} />
        </strong>
        {where ? ` ${trans.__('in %1', where)}` : ''}
        {peak.at.line ? <span className="nbmem-Source">{clipped(peak.at.line, 120)}</span> : null}
      </p>
      <CardBar
        parts={parts}
        total={total}
        label={trans.__('%1 at the peak', clipped(report.device.name, 60))}
      />
      <PartsTable parts={parts} of={report.parts_at_peak} total={total} />
      {report.phases.length > 0 ? <Phases report={report} /> : null}
      {report.notes.map(note => (
        <p key={note} className="nbmem-Note">
          {clipped(note)}
        </p>
      ))}
    </Section>
  );
}

function Phases(props: { report: ILastReport }): React.JSX.Element {
  const trans = React.useContext(Trans);
  const [all, setAll] = React.useState(false);
  const { phases, phases_left_out, peak } = props.report;
  const highest = phases.findIndex(phase => phase.peak === peak.allocated);
  // The step with the peak is what is looked for; without one, the first phases.
  const from = Math.max(0, Math.min(highest - SHOWN / 2, phases.length - SHOWN));
  const shown = all ? phases : phases.slice(from, from + SHOWN);
  return (
    <>
      <table className="nbmem-Table nbmem-Phases" data-testid="nbmem-phases">
        <thead>
          <tr>
            <th scope="col">{trans.__('Phase')}</th>
            <th scope="col">{trans.__('Peak')}</th>
            <th scope="col">{trans.__('After')}</th>
            <th scope="col">{trans.__('Time')}</th>
          </tr>
        </thead>
        <tbody>
          {shown.map((phase, i) => (
            <PhaseRow key={i} phase={phase} isHighest={phase === phases[highest]} />
          ))}
        </tbody>
      </table>
      {phases.length > SHOWN ? (
        <button className="nbmem-Button" onClick={() => setAll(!all)}>
          {all ? trans.__('Show fewer') : trans.__('Show all %1', phases.length)}
        </button>
      ) : null}
      {all && phases_left_out > 0 ? (
        <p className="nbmem-Note">{trans.__('%1 more are in the report.', phases_left_out)}</p>
      ) : null}
    </>
  );
}

function PhaseRow(props: { phase: IPhase; isHighest: boolean }): React.JSX.Element {
  const trans = React.useContext(Trans);
  const { phase } = props;
  const tint = PHASE_TINTS.get(phase.name) ?? OTHER_TINT;
  return (
    <tr className={props.isHighest ? 'nbmem-mod-highest' : undefined}>
      <th scope="row" style={{ paddingLeft: `${phase.depth > 0 ? 16 : 4}px` }}>
        <span className="nbmem-Phase" style={{ background: tint, color: TINT_INK }}>
          {clipped(phase.name, 40)}
        </span>
        {phase.step === null ? '' : ` ${trans.__('step %1', phase.step)}`}
      </th>
      <td>
        <Bytes count={phase.peak} />
      </td>
      <td>
        <Bytes count={phase.after} />
      </td>
      <td>{formatMs(phase.duration_ms)}</td>
    </tr>
  );
}

/** `backward, step 2`. */
export function placeOf(
  phase: string | null,
  step: number | null,
  __: (text: string, ...values: unknown[]) => string
): string {
  const parts = [
    phase === null ? '' : clipped(phase, 40),
    step === null ? '' : __('step %1', step)
  ];
  return parts.filter(part => part !== '').join(', ');
}

/** The amount that a finding saves: one figure, or a range. */
export function savingOf(low: number, high: number, trans: TranslationBundle): string {
  if (low === high) {
    return formatBytes(low);
  }
  return low === 0
    ? trans.__('up to %1', formatBytes(high))
    : `${formatBytes(low)} – ${formatBytes(high)}`;
}
