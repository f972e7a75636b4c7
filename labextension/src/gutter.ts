/**
 * Marks in an editor's gutter, each beside the line that it was measured on: it moves with the line,
 * and goes as soon as the line says something else.
 */

import {
  Compartment,
  MapMode,
  RangeSet,
  StateEffect,
  StateField,
  type Text
} from '@codemirror/state';
import { EditorView, gutter, GutterMarker } from '@codemirror/view';

import type { ILines } from './explorer/data.js';

/** What stands beside a line. */
export interface IMark {
  /** The line's number in the editor, from 1. */
  line: number;
  /** Draws it. */
  draw: () => HTMLElement;
}

/** Bytes of one line of the editor. */
export interface ILineBytes {
  line: number;
  peak: number;
  kept: number;
  taken: number;
}

class Marker extends GutterMarker {
  constructor(
    readonly text: string,
    private readonly _draw: () => HTMLElement
  ) {
    super();
  }

  /** What is written in front of the line moves it, and what deletes its first sign deletes it. */
  override startSide = 1;
  override endSide = 1;
  override mapMode = MapMode.TrackAfter;

  override toDOM(): Node {
    return this._draw();
  }
}

const NONE = RangeSet.empty as RangeSet<Marker>;
const put = StateEffect.define<RangeSet<Marker>>();

/** The marks of an editor that has some. */
export const marked = StateField.define<RangeSet<Marker>>({
  create: () => NONE,
  update: (marks, change) => {
    if (change.docChanged) {
      marks = marks.map(change.changes).update({
        filter: (from, _, { text }) => stands(change.newDoc, from, text)
      });
    }
    for (const effect of change.effects) {
      marks = effect.is(put) ? effect.value : marks;
    }
    return marks;
  }
});

/** Whether a line begins there and still says this. */
function stands(doc: Text, from: number, text: string): boolean {
  const line = doc.lineAt(from);
  return line.from === from && line.text === text;
}

/** In every editor that has marks, the place of what shows them. */
const place = new Compartment();
const shown = [
  marked,
  gutter({ class: 'nbmem-LineMarks', markers: view => view.state.field(marked) })
];

/** Put marks into an editor in place of those that it has; with none, nothing is left in it. */
export function mark(view: EditorView, marks: readonly IMark[]): void {
  const { state } = view;
  if (marks.length === 0) {
    if (place.get(state) !== undefined) {
      view.dispatch({ effects: place.reconfigure([]) });
    }
    return;
  }
  if (state.field(marked, false) === undefined) {
    const effect =
      place.get(state) === undefined
        ? StateEffect.appendConfig.of(place.of(shown))
        : place.reconfigure(shown);
    view.dispatch({ effects: effect });
  }
  view.dispatch({ effects: putting(state.doc, marks) });
}

/** What puts marks beside lines of a text. */
export function putting(doc: Text, marks: readonly IMark[]): StateEffect<RangeSet<Marker>> {
  const ranges = marks.map(({ line, draw }) => {
    const { from, text } = doc.line(line);
    return new Marker(text, draw).range(from);
  });
  return put.of(RangeSet.of(ranges, true));
}

/**
 * The recorded lines as lines of an editor. IPython takes empty lines above a cell away; none is
 * given where what was recorded is not what stands there.
 */
export function linesIn(text: readonly string[], { code, rows }: ILines): ILineBytes[] {
  const last = Math.max(...code.map(([number]) => number)); // nowhere, if nobody has the text
  for (let above = 0; last > 0 && above + last <= text.length; above++) {
    if (code.every(([number, line]) => same(line, text[number - 1 + above]))) {
      return rows.map(([number, peak, kept, taken]) => ({
        line: number + above,
        peak,
        kept,
        taken
      }));
    }
  }
  return [];
}

/** Whether a line was recorded as this one: IPython writes magics as calls, and `%%` as nothing. */
function same(recorded: string, written: string): boolean {
  return (
    recorded.trimEnd() === expanded(written).trimEnd() ||
    recorded.includes('get_ipython()') ||
    (recorded === '' && written.startsWith('%%'))
  );
}

/** With spaces for tabs, as Python's `expandtabs` does. */
function expanded(text: string): string {
  let column = 0;
  return text.replace(/[^\t]+|\t/g, part => {
    const width = part === '\t' ? 8 - (column % 8) : part.length;
    column += width;
    return part === '\t' ? ' '.repeat(width) : part;
  });
}
