/** The kernels of the server and what each holds; a click opens its notebook. */

import * as React from 'react';

import { clipped, exactBytes, formatBytes } from '../format.js';
import type { IKernelRow } from '../kernels.js';
import { Section, Trans } from './text.js';

const MOST = 20;

export function Kernels(props: {
  rows: IKernelRow[];
  open: (path: string) => void;
}): React.JSX.Element | null {
  const trans = React.useContext(Trans);
  const { rows } = props;
  if (rows.length < 2) {
    return null; // the one in front is all over the panel
  }
  return (
    <Section
      title={trans.__('Kernels of this server')}
      testId="nbmem-kernels"
      note={String(rows.length)}
    >
      <table className="nbmem-Table nbmem-Cells nbmem-Kernels">
        <thead>
          <tr>
            <th scope="col">{trans.__('Kernel')}</th>
            <th scope="col">{trans.__('Allocated')}</th>
            <th scope="col">{trans.__('Process')}</th>
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, MOST).map(row => (
            <Row key={row.id} row={row} open={props.open} />
          ))}
        </tbody>
      </table>
      {rows.length > MOST ? (
        <p className="nbmem-Note">{trans.__('and %1 more', rows.length - MOST)}</p>
      ) : null}
    </Section>
  );
}

function Row(props: { row: IKernelRow; open: (path: string) => void }): React.JSX.Element {
  const trans = React.useContext(Trans);
  const { row } = props;
  const name = clipped(row.name, 80);
  const path = row.path;
  return (
    <tr data-kernel={row.name} aria-current={row.isCurrent || undefined}>
      <th scope="row" title={path ?? row.name}>
        <div className="nbmem-Named">
          {path === null || row.isCurrent ? (
            <span>{name}</span>
          ) : (
            <button className="nbmem-Link" onClick={() => props.open(path)}>
              {name}
            </button>
          )}
          {row.isBusy ? <span className="nbmem-Tag">{trans.__('busy')}</span> : null}
          {row.isLoaded === false ? (
            <span className="nbmem-Tag">{trans.__('no nbmem')}</span>
          ) : null}
        </div>
      </th>
      <Amount count={row.allocated} />
      <Amount count={row.process} />
    </tr>
  );
}

/** An amount; `unknown` where nobody told. */
function Amount(props: { count: number | null }): React.JSX.Element {
  const { count } = props;
  return (
    <td className={count === null ? 'nbmem-mod-unknown' : undefined} title={exactBytes(count)}>
      {formatBytes(count)}
    </td>
  );
}
