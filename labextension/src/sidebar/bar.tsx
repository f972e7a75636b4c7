/** A whole card (or the host's memory) as one bar, and the table of its parts. */

import * as React from 'react';

import type { IPart } from '../figures.js';
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

/** The parts with their colours and bytes. */
export function PartsTable(props: { parts: IPart[]; total: number }): React.JSX.Element {
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
        {props.parts.map(part => (
          <tr key={part.key} data-part={part.key}>
            <th scope="row">
              <Swatch of={part.key} />
              {part.label}
            </th>
            <td>
              <Bytes count={part.bytes} />
            </td>
            <td className="nbmem-Share">{percent(part.bytes, props.total)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
