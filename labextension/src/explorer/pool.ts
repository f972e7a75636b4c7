/** The pool: segments as they were taken from the driver, tiled by their blocks. */

import { formatBytes } from '../format.js';
import { Boxes, type IBox } from './boxes.js';
import { STATES, type IData, type IPool, type ISegment } from './data.js';
import { h } from './dom.js';
import { Picture, type IBokeh } from './figures.js';
import type { ITheme } from './theme.js';

/** Rows of the picture at most; segments lie in them one after the other, the largest first. */
const ROWS = 12;

type Piece = { segment: ISegment; size: number; state: number; category: number; blocks: number };

export class PoolView {
  readonly table = h('table', { class: 'nbx-Table', 'data-testid': 'nbx-pool' });
  readonly words = h('p', { class: 'nbx-Words' });

  private constructor(
    private readonly _data: IData,
    picture: Picture
  ) {
    this._boxes = new Boxes<Piece>(
      picture,
      piece => this._said(piece),
      () => undefined
    );
  }

  static async draw(bokeh: IBokeh, data: IData, host: HTMLElement): Promise<PoolView> {
    const text = data.figures.find(([name]) => name === 'pool')?.[1] ?? '';
    return new PoolView(data, await Picture.draw(bokeh, text, host));
  }

  show(pool: IPool): void {
    const reserved = pool.used + pool.releasable + pool.stuck;
    this.words.textContent =
      `torch.cuda.empty_cache() would give back ${formatBytes(pool.releasable)} of ${formatBytes(reserved)} reserved; ` +
      `${formatBytes(pool.stuck)} lie free between blocks in use and stay.`;
    this._draw(pool);
    this._list(pool, reserved);
  }

  wear(theme: ITheme): void {
    this._boxes.wear(theme);
  }

  private _draw(pool: IPool): void {
    const whole = pool.segments.reduce((sum, segment) => sum + segment.size, 0);
    const largest = pool.segments[0]?.size ?? 1;
    const width = Math.max(largest, (1.04 * whole) / ROWS);
    const gap = width / 500;
    const boxes: IBox<Piece>[] = [];
    let left = 0;
    let row = 0;
    for (const segment of pool.segments) {
      if (left > 0 && left + segment.size > width * 1.0001) {
        left = 0;
        row += 1;
      }
      let at = left;
      for (const [size, state, category, blocks] of segment.pieces) {
        const key = category >= 0 ? this._data.categories[category].key : `cached_${STATES[state]}`;
        const label = category >= 0 ? this._data.categories[category].label : STATES[state];
        boxes.push({
          left: at,
          right: at + size,
          top: row + 0.08,
          bottom: row + 0.92,
          paint: STATES[state] === 'pending' ? 'pending' : key,
          alpha: 1,
          text: `${label} ${formatBytes(size)}`,
          what: { segment, size, state, category, blocks }
        });
        at += size;
      }
      left = at + gap;
    }
    this._boxes.draw(boxes, width + gap, Math.max(row + 1, 5));
  }

  private _list(pool: IPool, reserved: number): void {
    const rows: [string, string, number][] = [
      ['in use', 'blocks that hold tensors', pool.used],
      ['releasable', 'free whole segments: what empty_cache() gives back', pool.releasable],
      ['stuck', 'free pieces of segments in use', pool.stuck],
      ['reserved', `${pool.segments.length + pool.others} segments`, reserved]
    ];
    const beyond =
      pool.others === 0
        ? []
        : [
            h(
              'tr',
              {},
              h(
                'td',
                { colspan: 3, class: 'nbx-mod-quiet' },
                `${pool.others} smaller segments, ${formatBytes(pool.other_bytes)}, are not in the picture`
              )
            )
          ];
    this.table.replaceChildren(
      h('caption', {}, 'The pool'),
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
        ),
        ...beyond
      )
    );
  }

  private _said({ segment, size, state, category, blocks }: Piece): string {
    const what =
      category >= 0
        ? `${this._data.categories[category].label}, ${blocks} block${blocks === 1 ? '' : 's'}`
        : `free, ${STATES[state]}`;
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

  private readonly _boxes: Boxes<Piece>;
}
