/** Other processes on the cards, by notebook where that is known. */

import * as React from 'react';

import { clipped } from '../format.js';
import type { IProcess } from '../messages.js';
import { Bytes, Section, Trans } from './text.js';

const MOST = 20;

export function Others(props: {
  processes: IProcess[];
  several: boolean;
}): React.JSX.Element | null {
  const trans = React.useContext(Trans);
  if (props.processes.length === 0) {
    return null;
  }
  const left = props.processes.length - MOST;
  return (
    <Section title={trans.__('Also on the card')} testId="nbmem-others">
      <table className="nbmem-Table">
        <thead className="nbmem-Unseen">
          <tr>
            <th scope="col">{trans.__('Process')}</th>
            <th scope="col">{trans.__('Bytes')}</th>
          </tr>
        </thead>
        <tbody>
          {props.processes.slice(0, MOST).map(process => (
            <tr key={`${process.card}-${process.pid}`}>
              <th scope="row" title={trans.__('process %1', process.pid)}>
                <div className="nbmem-Named">
                  <span>
                    {clipped(
                      process.notebook ?? process.name ?? trans.__('process %1', process.pid),
                      80
                    )}
                  </span>
                  {process.notebook === null ? null : (
                    <span className="nbmem-Tag">{trans.__('notebook')}</span>
                  )}
                  {props.several ? (
                    <span className="nbmem-Tag">{trans.__('GPU %1', process.card)}</span>
                  ) : null}
                </div>
              </th>
              <td>
                <Bytes count={process.used} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {left > 0 ? <p className="nbmem-Note">{trans.__('and %1 more', left)}</p> : null}
    </Section>
  );
}
