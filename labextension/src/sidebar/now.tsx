/** What is on each card now, or in the host's memory: figures, bar, line and parts. */

import * as React from 'react';

import {
  allocatedPart,
  drawnOf,
  partsOf,
  partsOfHost,
  type IPart,
  type Ledger
} from '../figures.js';
import { exactBytes, formatBytes, formatPeak } from '../format.js';
import type { ICardSample, IHostSample } from '../messages.js';
import { newest, type IKernelState } from '../state.js';
import { hostOf, nameOf } from '../status.js';
import { CardBar, PartsTable } from './bar.js';
import { LineChart, type IReading } from './chart.js';
import { Trans } from './text.js';

const MOST_CARDS = 16;

export function Now(props: { state: IKernelState }): React.JSX.Element | null {
  const last = newest(props.state);
  const host = hostOf(last);
  if (last === null) {
    return null;
  }
  return (
    <>
      {host === null ? null : <Host state={props.state} host={host} />}
      {last.cards.slice(0, MOST_CARDS).map(card => (
        <OneCard key={card.index} state={props.state} index={card.index} />
      ))}
    </>
  );
}

function OneCard(props: { state: IKernelState; index: number }): React.JSX.Element | null {
  const trans = React.useContext(Trans);
  const readings = props.state.samples.flatMap(sample => {
    const card = sample.cards.find(one => one.index === props.index);
    return card ? [{ t: sample.t_ms, card }] : [];
  });
  const last = readings[readings.length - 1];
  if (last === undefined) {
    return null;
  }
  const { card } = last;
  const parts = partsOf(card, categoriesOf(props.state, card));
  const told = nameOf(card, trans);
  const id = `nbmem-card-${props.index}`;
  return (
    <Memory
      told={told}
      id={id}
      parts={parts}
      total={card.total}
      shared={card.shared}
      readings={readings}
    >
      <Figure name={trans.__('allocated')} id="allocated" count={card.allocated} />
      <Figure name={trans.__('peak')} id="peak" count={card.peak} exact={card.peak_exact} />
      <Figure name={trans.__('reserved')} id="reserved" count={card.reserved} />
      <Figure name={trans.__('process')} id="process" count={card.process} />
      <Figure name={trans.__('free')} id="free" count={card.free} />
    </Memory>
  );
}

function Host(props: { state: IKernelState; host: IHostSample }): React.JSX.Element {
  const trans = React.useContext(Trans);
  const { host } = props;
  const parts = partsOfHost(host);
  const told = trans.__('Host memory');
  const readings: IReading[] = props.state.samples.flatMap(sample =>
    sample.host === null ? [] : [{ t: sample.t_ms, card: drawnOf(sample.host) }]
  );
  return (
    <Memory
      told={told}
      id="nbmem-host"
      parts={parts}
      of={host.parts}
      total={host.total}
      readings={readings}
    >
      <Figure name={trans.__('process')} id="process" count={host.process} />
      <Figure name={trans.__('peak')} id="peak" count={host.peak} exact={host.peak_exact} />
      <Figure name={trans.__('available')} id="free" count={host.free} />
    </Memory>
  );
}

/** One memory as it is now; its figures are the children. */
function Memory(props: {
  told: string;
  id: string;
  parts: IPart[];
  of?: Ledger;
  total: number | null;
  shared?: boolean;
  readings: IReading[];
  children: React.ReactNode;
}): React.JSX.Element {
  const { told, parts } = props;
  const trans = React.useContext(Trans);
  const total = props.total ?? parts.reduce((sum, part) => sum + part.bytes, 0);
  return (
    <section className="nbmem-Card" aria-label={told} data-testid={props.id}>
      <header>
        <h3>{told}</h3>
        {props.total === null ? null : (
          <span>
            {props.shared
              ? trans.__('%1, shared with the host', formatBytes(props.total))
              : formatBytes(props.total)}
          </span>
        )}
      </header>
      <CardBar parts={parts} total={total} label={told} />
      <dl className="nbmem-Figures">{props.children}</dl>
      <LineChart readings={props.readings} label={told} />
      <PartsTable parts={parts} of={props.of} total={total} />
    </section>
  );
}

/** An amount with its name; one that is not exact is the least that it can be. */
function Figure(props: {
  name: string;
  id: string;
  count: number | null;
  exact?: boolean;
}): React.JSX.Element {
  const { count, exact = true } = props;
  return (
    <div>
      <dt>{props.name}</dt>
      <dd
        title={count === null ? exactBytes(null) : formatPeak(count, exact, exactBytes)}
        data-testid={`nbmem-${props.id}`}
        data-bytes={count ?? ''}
      >
        {count === null ? formatBytes(null) : formatPeak(count, exact)}
      </dd>
    </div>
  );
}

/** What is known of the allocated bytes: after a traced cell its report knows more than a reading. */
function categoriesOf(state: IKernelState, card: ICardSample): Ledger {
  const { report } = state;
  const isTraced = report !== null && report.cell?.begun_ms === newest(state)?.cell.begun_ms;
  if (card.by_category.length === 0 && isTraced && report.device.index === card.index) {
    return allocatedPart(report.at_end);
  }
  return card.by_category;
}
