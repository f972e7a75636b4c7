/** Small pieces that every section of the sidebar is made of. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';

import { exactBytes, formatBytes, splitNames } from '../format.js';
import { ALLOCATED, COLOURS, HATCHES } from '../palette.js';

/** The translations, for every component below the panel. */
export const Trans = React.createContext<TranslationBundle>(nullTranslator.load('nbmem'));

/** An amount, its exact bytes in the tooltip. */
export function Bytes(props: { count: number | null; signed?: boolean }): React.JSX.Element {
  return (
    <span className="nbmem-Bytes" title={exactBytes(props.count)}>
      {formatBytes(props.count, props.signed)}
    </span>
  );
}

/** A sentence in which names stand between backticks: they are drawn as code. */
export function Sentence(props: { text: string }): React.JSX.Element {
  const pieces = splitNames(props.text).map(([piece, isName], index) =>
    isName ? (
      <code key={index} className="nbmem-Name">
        {piece}
      </code>
    ) : (
      piece
    )
  );
  return <>{pieces}</>;
}

/** A part of the panel that can be folded. */
export function Section(props: {
  title: string;
  testId: string;
  note?: React.ReactNode;
  children: React.ReactNode;
}): React.JSX.Element {
  return (
    <details className="nbmem-Section" data-testid={props.testId} open={true}>
      <summary>
        <h3>{props.title}</h3>
        {props.note ? <span className="nbmem-Section-note">{props.note}</span> : null}
      </summary>
      {props.children}
    </details>
  );
}

/** Colour of a category, or of what a reading cannot tell apart. */
export function colourOf(key: string): string {
  return COLOURS.get(key) ?? ALLOCATED;
}

/** Colour and hatch of a category, for a box. */
export function fillOf(key: string): React.CSSProperties {
  if (key === 'free') {
    return { background: 'transparent', boxShadow: 'inset 0 0 0 1px var(--jp-border-color1)' };
  }
  if (key === 'cached') {
    return fillOf('cached_releasable');
  }
  const ground = colourOf(key);
  const line = HATCHES.get(key);
  return {
    background:
      line === undefined
        ? ground
        : `repeating-linear-gradient(135deg, ${line} 0 1.5px, ${ground} 1.5px 4px)`
  };
}

export function Swatch(props: { of: string }): React.JSX.Element {
  return <span className="nbmem-Swatch" style={fillOf(props.of)} aria-hidden="true" />;
}
