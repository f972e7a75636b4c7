/** The cells that have run: what each took and peaked at. */

import * as React from 'react';

import { clipped, exactBytes, formatMs, formatPeak, percent } from '../format.js';
import type { ICell, ICellEnded } from '../messages.js';
import { Bytes, Section, Trans } from './text.js';

const SHOWN = 8;

export function Cells(props: {
  cells: ICellEnded[];
  goTo: (cell: ICell) => void;
  isHere: (cell: ICell) => boolean;
}): React.JSX.Element | null {
  const trans = React.useContext(Trans);
  const [all, setAll] = React.useState(false);
  const cells = [...props.cells].reverse();
  if (cells.length === 0) {
    return null;
  }
  const highest = Math.max(...cells.map(one => one.delta?.peak?.allocated ?? 0), 1);
  return (
    <Section title={trans.__('Cells')} testId="nbmem-cells" note={trans.__('newest first')}>
      <table className="nbmem-Table nbmem-Cells">
        <thead>
          <tr>
            <th scope="col">{trans.__('Cell')}</th>
            <th scope="col">{trans.__('Kept')}</th>
            <th scope="col">{trans.__('Peak')}</th>
          </tr>
        </thead>
        <tbody>
          {cells.slice(0, all ? undefined : SHOWN).map((one, i) => (
            <Row key={`${one.t_ms}-${i}`} one={one} highest={highest} {...props} />
          ))}
        </tbody>
      </table>
      {cells.length > SHOWN ? (
        <button className="nbmem-Button" onClick={() => setAll(!all)}>
          {all ? trans.__('Show fewer') : trans.__('Show all %1', cells.length)}
        </button>
      ) : null}
    </Section>
  );
}

function Row(props: {
  one: ICellEnded;
  highest: number;
  goTo: (cell: ICell) => void;
  isHere: (cell: ICell) => boolean;
}): React.JSX.Element {
  const trans = React.useContext(Trans);
  const { cell, delta } = props.one;
  const peak = delta?.peak ?? null;
  const number = cell.number === null ? '' : `[${cell.number}] `;
  const name = `${number}${clipped(cell.label, 80)}`;
  const kept = delta === null ? null : delta.allocated_after - delta.allocated_before;
  const took = delta === null ? '' : `, ${formatMs(delta.duration_ns / 1e6)}`;
  const traced = cell.traced ? `, ${trans.__('traced')}` : '';
  const error = delta?.error ? clipped(delta.error, 60) : null;
  return (
    <tr data-cell={cell.number ?? ''}>
      <th scope="row" title={`${name}${took}${traced}`}>
        <div className="nbmem-Named">
          {props.isHere(cell) ? (
            <button className="nbmem-Link" onClick={() => props.goTo(cell)}>
              {name}
            </button>
          ) : (
            <span>{name}</span>
          )}
          {error ? (
            <span className="nbmem-Tag nbmem-mod-error">{error}</span>
          ) : cell.traced ? (
            <span className="nbmem-Tag">{trans.__('traced')}</span>
          ) : null}
        </div>
      </th>
      <td>{kept === null ? '' : <Bytes count={kept} signed={true} />}</td>
      <td
        className="nbmem-Peak"
        title={
          peak === null ? exactBytes(null) : formatPeak(peak.allocated, peak.exact, exactBytes)
        }
        data-bytes={peak?.allocated ?? ''}
      >
        {peak === null ? '' : formatPeak(peak.allocated, peak.exact)}
        <span aria-hidden="true" style={{ width: percent(peak?.allocated ?? 0, props.highest) }} />
      </td>
    </tr>
  );
}
