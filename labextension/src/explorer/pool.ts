/** The pool: segments as they were taken from the driver, tiled by their blocks. */

import { ACTIVE, CACHED_RELEASABLE, CACHED_STUCK, RESERVED } from '../categories.js';
import { formatBytes } from '../format.js';
import { Boxes, type IBox } from './boxes.js';
import type { Choice } from './choice.js';
import type { IData } from './data.js';
import { h } from './dom.js';
import type { Picture, Pictures } from './figures.js';
import { rowOf, sumAt } from './moments.js';
import { tiledAt, type IPiece, type ISegment } from './poolmap.js';
import type { ITheme } from './theme.js';

/** Rows of the picture at most; segments lie in them one after the other, the largest first. */
const ROWS = 12;
/** A segment that would need more than so many of these rows goes on in the next ones. */
const WRAPPED = 6;

interface IPlace {
  segment: ISegment;
  piece: IPiece;
}

export class PoolView {
  readonly table = h('table', { class: 'nbx-Table', 'data-testid': 'nbx-pool' });
  readonly words = h('p', { class: 'nbx-Words', role: 'status' });

  private constructor(
    private readonly _data: IData,
    private readonly _choice: Choice,
    picture: Picture
  ) {
    this._boxes = new Boxes<IPlace>(
      picture,
      place => this._said(place),
      () => undefined,
      'The pool, as boxes. Arrows go to the next piece of a segment.'
    );
  }

  static async draw(
    pictures: Pictures,
    data: IData,
    choice: Choice,
    host: HTMLElement
  ): Promise<PoolView> {
    return new PoolView(data, choice, await pictures.draw('pool', host));
  }

  follow(): void {
    const row = rowOf(this._data, this._choice.now.moment);
    const event = this._data.moments.event[row];
    if (event === this._event) {
      return;
    }
    this._event = event;
    const { held } = this._data.moments;
    const reserved = sumAt(this._data, row, RESERVED);
    const used = sumAt(this._data, row, ACTIVE);
    const [releasable, stuck] = [held[CACHED_RELEASABLE][row], held[CACHED_STUCK][row]];
    this.words.textContent =
      `torch.cuda.empty_cache() would give back ${formatBytes(releasable)} of ${formatBytes(reserved)} reserved; ` +
      `${formatBytes(stuck)} lie free between blocks in use and stay.`;
    const tiled = tiledAt(this._data.pools, event);
    this._draw(tiled);
    const rows: [string, string, number][] = [
      ['in use', 'blocks that hold tensors', used],
      ['releasable', 'free whole segments: what empty_cache() gives back', releasable],
      ['stuck', 'free pieces of segments in use, and what graphs keep for replay', stuck],
      ['reserved', 'taken from the driver', reserved]
    ];
    this._list(rows, tiled);
  }

  wear(theme: ITheme): void {
    this._boxes.wear(theme);
  }

  private _draw(tiled: [ISegment, IPiece[]][]): void {
    const whole = tiled.reduce((sum, [segment]) => sum + segment.size, 0);
    const largest = tiled[0]?.[0].size ?? 1;
    const usual = (1.04 * whole) / ROWS;
    const width = Math.max(largest > WRAPPED * usual ? usual : largest, usual);
    const gap = width / 500;
    const boxes: IBox<IPlace>[] = [];
    let left = 0;
    let row = 0;
    for (const [segment, pieces] of tiled) {
      if (left > 0 && left + segment.size > width * 1.0001) {
        left = 0;
        row += 1;
      }
      for (const piece of pieces) {
        const text = `${this._label(piece)} ${formatBytes(piece.size)}`;
        for (let size = piece.size; size > 0;) {
          if (left >= width) {
            left = 0;
            row += 1;
          }
          const part = Math.min(size, Math.max(width * 1.0001 - left, 1));
          boxes.push({
            left,
            right: left + part,
            top: row + 0.08,
            bottom: row + 0.92,
            paint: piece.state === 'pending' ? 'pending' : this._paint(piece),
            alpha: 1,
            text: size === piece.size ? text : '',
            what: { segment, piece }
          });
          left += part;
          size -= part;
        }
      }
      left += gap;
    }
    this._boxes.draw(boxes, width + gap, Math.max(row + 1, 5));
  }

  private _paint({ category, state }: IPiece): string {
    return category >= 0 ? this._data.categories[category].key : `cached_${state}`;
  }

  private _label({ category, state }: IPiece): string {
    return category >= 0 ? this._data.categories[category].label : state;
  }

  private _list(rows: [string, string, number][], tiled: [ISegment, IPiece[]][]): void {
    const drawn = tiled.reduce((sum, [segment]) => sum + segment.size, 0);
    const rest = rows[rows.length - 1][2] - drawn;
    const count = `${tiled.length.toLocaleString('en-US')} segment${tiled.length === 1 ? '' : 's'}`;
    const said = rest > 0 ? `${count}; smaller ones hold ${formatBytes(rest)} more` : count;
    this.table.replaceChildren(
      h('caption', {}, `The pool: ${said}`),
      h(
        'tbody',
        {},
        ...rows.map(([name, what, bytes]) =>
          h(
            'tr',
            {
              'data-pool': name,
              'data-bytes': bytes,
              class: name === 'reserved' ? 'nbx-mod-sum' : null
            },
            h('th', { scope: 'row' }, name),
            h('td', {}, formatBytes(bytes)),
            h('td', { class: 'nbx-mod-text nbx-mod-quiet' }, what)
          )
        )
      )
    );
  }

  private _said({ segment, piece }: IPlace): string {
    const { size, state, category, blocks, free } = piece;
    const count = `${blocks.toLocaleString('en-US')} block${blocks === 1 ? '' : 's'}`;
    let what = `free, ${state}`;
    if (free !== null) {
      what = `several narrow pieces, mostly ${this._label(piece)}: ${count}, ${formatBytes(free)} free`;
    } else if (category >= 0) {
      const waits = state === 'pending' ? ', freed but still used by another stream' : '';
      what = `${this._label(piece)}, ${count}${waits}`;
    }
    const kind = [
      segment.small ? 'small pool' : '',
      segment.expandable ? 'expandable' : '',
      segment.pool ? 'private pool' : '',
      segment.stream ? `stream ${segment.stream}` : ''
    ];
    const tail = kind
      .filter(Boolean)
      .map(text => `, ${text}`)
      .join('');
    return `${formatBytes(size)} ${what}; in a segment of ${formatBytes(segment.size)}${tail}`;
  }

  private _event = -1;
  private readonly _boxes: Boxes<IPlace>;
}
