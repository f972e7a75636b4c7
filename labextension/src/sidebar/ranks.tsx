/** The ranks that a cell has started (engines, spawned processes): where each is and what it holds. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { partsOfRank } from '../figures.js';
import { clipped, exactBytes, formatBytes } from '../format.js';
import type { IRankNow, IRanksNow } from '../messages.js';
import { countsOf, scaleOf } from '../ranks.js';
import { CardBar } from './bar.js';
import { placeOf } from './report.js';
import { Section, Trans } from './text.js';

export function Ranks(props: { ranks: IRanksNow }): React.JSX.Element {
  const trans = React.useContext(Trans);
  const { ranks } = props;
  return (
    <Section title={trans.__('Ranks')} testId="nbmem-ranks" note={countsOf(ranks, trans)}>
      <table className="nbmem-Table nbmem-Cells nbmem-Ranks">
        <thead>
          <tr>
            <th scope="col">{trans.__('Rank')}</th>
            <th scope="col">{trans.__('Allocated')}</th>
            <th scope="col">{trans.__('Peak')}</th>
          </tr>
        </thead>
        <tbody>
          {ranks.ranks.map(rank => (
            <Rank key={rank.number} rank={rank} scale={scaleOf(ranks)} />
          ))}
        </tbody>
      </table>
      {ranks.left_out > 0 ? (
        <p className="nbmem-Note">{trans.__('and %1 more, with lower peaks', ranks.left_out)}</p>
      ) : null}
      <p className="nbmem-Note">{clipped(ranks.folder, 120)}</p>
    </Section>
  );
}

function Rank(props: { rank: IRankNow; scale: number }): React.JSX.Element {
  const trans = React.useContext(Trans);
  const { rank } = props;
  const card =
    rank.card === null || rank.total === null
      ? trans.__('no card yet')
      : trans.__('%1, %2', rank.card, formatBytes(rank.total));
  const told = [trans.__('on %1: %2', rank.host, card), ...(rank.at === null ? [] : [rank.at])];
  return (
    <>
      <tr data-rank={rank.number} data-state={rank.state}>
        <th scope="row" title={clipped(told.join('\n'))}>
          {rank.number} <span className="nbmem-Rank-where">{whereOf(rank, trans)}</span>
        </th>
        <td title={exactBytes(rank.allocated)}>{amount(rank.allocated)}</td>
        <td title={exactBytes(rank.peak)}>{amount(rank.peak)}</td>
      </tr>
      <tr className="nbmem-Rank-more">
        <td colSpan={3}>
          {rank.allocated === null ? null : (
            <CardBar
              parts={partsOfRank(rank)}
              total={props.scale}
              label={trans.__('Rank %1', rank.number)}
            />
          )}
          {rank.error === null ? null : <p className="nbmem-Trouble">{clipped(rank.error, 200)}</p>}
          {rank.at !== null && (rank.state === 'silent' || rank.state === 'lost') ? (
            <p className="nbmem-Note">{clipped(rank.at, 120)}</p>
          ) : null}
        </td>
      </tr>
    </>
  );
}

/** What a rank does: its phase and step while it runs, else how it ended. */
function whereOf(rank: IRankNow, trans: TranslationBundle): string {
  const __ = trans.__.bind(trans);
  const where = placeOf(rank.phase, rank.step, __);
  switch (rank.state) {
    case 'running':
      return where || __('running');
    case 'silent':
      return [__('silent'), where].filter(part => part !== '').join(', ');
    case 'lost':
      return __('no end: killed?');
    case 'failed':
      return __('failed');
    case 'ended':
    case 'finished':
      return __('finished');
  }
}

function amount(count: number | null): string {
  return count === null ? '–' : formatBytes(count);
}
