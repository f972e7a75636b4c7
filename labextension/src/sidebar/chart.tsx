/** The line of one card, or of the host: the last minute at most. */

import * as React from 'react';

import { seriesOf, type IDrawn } from '../figures.js';
import { axisEnd, formatBytes } from '../format.js';
import { areaPath, stepPath, windowOf, type IFrame } from '../line.js';
import { colourOf, Trans } from './text.js';

/** One reading of one card, or of the host. */
export interface IReading {
  t: number;
  card: IDrawn;
}

const ROWS = 12;

/** Null as long as there is nothing to draw: a card on which nothing has been put. */
export function LineChart(props: {
  readings: IReading[];
  label: string;
}): React.JSX.Element | null {
  const trans = React.useContext(Trans);
  const times = props.readings.map(reading => reading.t);
  const cards = props.readings.map(reading => reading.card);
  const to = times[times.length - 1] ?? 0;
  const highest = cards.map(card => Math.max(card.reserved ?? 0, card.peak, card.process ?? 0));
  if (Math.max(...highest) <= 0) {
    return null;
  }
  const span = windowOf(times);
  const frame: IFrame = { from: to - span, to, top: axisEnd(Math.max(...highest)) };
  const reserved = known(cards.map(card => card.reserved));
  const processes = known(cards.map(card => card.process));
  return (
    <figure className="nbmem-Line">
      <div className="nbmem-Line-axis">
        <span>{formatBytes(frame.top).replace(/\.0+ /, ' ')}</span>
        <span className="nbmem-Line-keys" aria-hidden="true">
          <span className="nbmem-Line-key nbmem-mod-peak">{trans.__('peak')}</span>
          {reserved === null ? null : (
            <span className="nbmem-Line-key nbmem-mod-reserved">{trans.__('reserved')}</span>
          )}
          {processes === null ? null : (
            <span className="nbmem-Line-key nbmem-mod-process">{trans.__('process')}</span>
          )}
        </span>
      </div>
      <svg
        viewBox="0 0 100 100"
        preserveAspectRatio="none"
        role="img"
        aria-label={trans.__('%1 over time; the table below has the figures', props.label)}
        data-testid="nbmem-line"
      >
        <path className="nbmem-Line-grid" d="M0 50H100" />
        <Areas times={times} cards={cards} frame={frame} />
        {reserved === null ? null : (
          <path className="nbmem-Line-reserved" d={stepPath({ times, values: reserved }, frame)} />
        )}
        <path
          className="nbmem-Line-peak"
          data-testid="nbmem-line-peak"
          d={stepPath({ times, values: cards.map(card => card.peak) }, frame)}
        />
        {processes === null ? null : (
          <path className="nbmem-Line-process" d={stepPath({ times, values: processes }, frame)} />
        )}
      </svg>
      <div className="nbmem-Line-axis" aria-hidden="true">
        <span>{trans.__('%1 s ago', span / 1000)}</span>
        <span>{trans.__('last reading')}</span>
      </div>
      <Readings readings={props.readings} to={to} />
    </figure>
  );
}

/** A curve's values; null where a reading lacks one. */
function known(values: (number | null)[]): number[] | null {
  return values.every(value => value !== null) ? values : null;
}

function Areas(props: { times: number[]; cards: IDrawn[]; frame: IFrame }): React.JSX.Element {
  const { times, frame } = props;
  let below: number[] | null = null;
  const areas = seriesOf(props.cards).map(({ key, values }) => {
    const lower: number[] | null = below;
    const upper = values.map((bytes, i) => bytes + (lower?.[i] ?? 0));
    below = upper;
    const fill = colourOf(key);
    return <path key={key} d={areaPath({ times, values: upper }, lower, frame)} style={{ fill }} />;
  });
  return <g>{areas}</g>;
}

/** The readings as a table, at most ROWS of them, the newest first. */
function Readings(props: { readings: IReading[]; to: number }): React.JSX.Element {
  const trans = React.useContext(Trans);
  const [open, setOpen] = React.useState(false);
  const every = Math.max(1, Math.ceil(props.readings.length / ROWS));
  const shown = [...props.readings].reverse().filter((_, i) => i % every === 0);
  const all: [string, (card: IDrawn) => number | null][] = [
    [trans.__('Allocated'), card => card.allocated],
    [trans.__('Peak'), card => card.peak],
    [trans.__('Reserved'), card => card.reserved],
    [trans.__('Process'), card => card.process]
  ];
  const columns = all.filter(([, of]) => props.readings.some(({ card }) => of(card) !== null));
  return (
    <details className="nbmem-Behind" onToggle={event => setOpen(event.currentTarget.open)}>
      <summary>{trans.__('Show as a table')}</summary>
      {open ? (
        <table className="nbmem-Table" data-testid="nbmem-readings">
          <thead>
            <tr>
              <th scope="col">{trans.__('Seconds ago')}</th>
              {columns.map(([name]) => (
                <th key={name} scope="col">
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map(({ t, card }) => (
              <tr key={t}>
                <th scope="row">{((props.to - t) / 1000).toFixed(1)}</th>
                {columns.map(([name, of]) => (
                  <td key={name}>{formatBytes(of(card))}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      ) : null}
    </details>
  );
}
