/** A whole card (or the host's memory) as one bar, and the table of its parts. */

import * as React from 'react';

import { linesOf, type IPart, type Ledger } from '../figures.js';
import { formatBytes, percent } from '../format.js';
import { Bytes, fillOf, Swatch, Trans } from './text.js';

/** The bar; what it shows is in the table of the same parts. */
export function CardBar(props: {
  parts: IPart[];
  total: number;
  label: string;
}): React.JSX.Element {
  const whole = Math.max(
    props.total,
    props.parts.reduce((sum, part) => sum + part.bytes, 0),
    1
  );
  const told = props.parts.map(part => `${part.label} ${formatBytes(part.bytes)}`).join(', ');
  return (
    <div className="nbmem-Bar" role="img" aria-label={`${props.label}: ${told}`}>
      {props.parts
        .filter(part => part.key !== 'free')
        .map(part => (
          <span
            key={part.key}
            title={`${part.label}: ${formatBytes(part.bytes)}`}
            style={{ ...fillOf(part.key), width: `${(100 * part.bytes) / whole}%` }}
          />
        ))}
    </div>
  );
}

/** The parts with their colours and bytes; `of` is what the host's memory is of across them. */
export function PartsTable(props: {
  parts: IPart[];
  of?: Ledger;
  total: number;
}): React.JSX.Element {
  const trans = React.useContext(Trans);
  return (
    <table className="nbmem-Table" data-testid="nbmem-parts">
      <thead className="nbmem-Unseen">
        <tr>
          <th scope="col">{trans.__('What')}</th>
          <th scope="col">{trans.__('Bytes')}</th>
          <th scope="col">{trans.__('Share of the whole')}</th>
        </tr>
      </thead>
      <tbody>
        {linesOf(props.parts, props.of ?? []).map(line => (
          <tr
            key={`${line.kind}-${line.key}`}
            className={`nbmem-mod-${line.kind}`}
            {...{ [`data-${line.kind}`]: line.key }}
          >
            <th scope="row" title={line.label}>
              {line.kind === 'part' ? <Swatch of={line.key} /> : null}
              {line.label}
            </th>
            <td>
              <Bytes count={line.bytes} />
            </td>
            <td className="nbmem-Share">{percent(line.bytes, props.total)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
