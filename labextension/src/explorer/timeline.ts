/** The timeline: what was held when, under the strips of cells, steps and phases. */

import { ACTIVE, OTHER_PROCESSES, PROCESS, RESERVED } from '../categories.js';
import { formatBytes } from '../format.js';
import { OTHER_TINT } from '../palette.js';
import type { Choice, IKernel } from './choice.js';
import type { IData } from './data.js';
import { h, swatch } from './dom.js';
import { phaseIn, type Picture, type Pictures } from './figures.js';
import { allocatedAt, inWords, peakBetween, rowOf, sumAt } from './moments.js';
import { colourOf, paintOf, type ITheme } from './theme.js';
import { byteTicks, countTicks, roomFor, timeTicks } from './ticks.js';
import { columnsIn, rowOfX, shown, stripsOf, zoomedAbout, type IStrip } from './view.js';

const STRIP = 0.075;
/** The card's limit is part of the picture once the reserved bytes reach this part of it. */
const NEAR = 0.6;
/** So much of the reserved bytes may the process have beyond them and still be in the picture. */
const CLOSE = 1.5;
/** The cache hides the picture from so many times the allocated bytes on: then it is a line. */
const HIDES = 4;
/** Room above the allocated bytes for that line. */
const ROOM = 1.14;
const CLICK = 4;

export type Scale = 'fit' | 'card';

/** Whether what is cached would leave the allocated bytes a strip at the bottom. */
export function cacheHides(allocated: number, reserved: number): boolean {
  return allocated > 0 && reserved >= HIDES * allocated;
}

export class Timeline {
  private constructor(
    private readonly _data: IData,
    private readonly _choice: Choice,
    private readonly _picture: Picture,
    private readonly _host: HTMLElement,
    private readonly _kernel: IKernel | null
  ) {
    this._byEvent = _data.by_event;
    this._tooltip = h('div', { class: 'nbx-Tooltip', 'aria-hidden': 'true' });
    this._hair = h('div', { class: 'nbx-Hair', 'aria-hidden': 'true' });
    this._tooltip.hidden = this._hair.hidden = this._life.hidden = true;
    // A snapshot does not know its card: its total is what was reserved at most.
    const known = _data.process_known || _data.total > _data.peak.reserved;
    this._limitName.textContent = known
      ? 'most that torch can reserve here'
      : 'most that torch has reserved';
    _host.append(this._life, this._limitName, this._cacheName, this._hair, this._tooltip);
    const { held } = _data.moments;
    const unused = _data.categories
      .filter((_, category) => !held[category].some(bytes => bytes > 0))
      .map(({ key }) => `area ${key}`);
    if (_data.host) {
      unused.push('reserved');
    }
    _picture.keep(name => !unused.includes(name));
    this._connect();
    _picture.onResize(() => this._zoom());
    this._all();
  }

  static async draw(
    pictures: Pictures,
    data: IData,
    choice: Choice,
    host: HTMLElement,
    kernel: IKernel | null
  ): Promise<Timeline> {
    return new Timeline(data, choice, await pictures.draw('timeline', host), host, kernel);
  }

  /** Count events or time from left to right. */
  set byEvent(value: boolean) {
    this._byEvent = value;
    this._all();
  }

  set scale(value: Scale) {
    this._scale = value;
    this._zoom();
  }

  /** Is told which part of it is in view, from 0 to 1. */
  set zoomed(value: (low: number, high: number) => void) {
    this._zoomed = value;
    this._zoom();
  }

  /** Bring a part of it into the middle of the view. */
  centre(part: number): void {
    const half = (this._view[1] - this._view[0]) / 2;
    this._show(part * this._end - half, part * this._end + half);
  }

  /** Dragging moves the picture and does not brush. */
  panning = false;

  zoomBy(factor: number): void {
    const at = this._at[this._row];
    const [low, high] = this._view;
    const middle = at >= low && at <= high ? at : (low + high) / 2;
    this._show(...zoomedAbout(middle, this._view, factor));
  }

  showAll(): void {
    this._show(0, this._end);
  }

  /** There are more moments than before. */
  renew(): void {
    this._all(this._view);
  }

  /** The chosen moment and stretch. */
  follow(): void {
    const { moment, span } = this._choice.now;
    this._row = rowOf(this._data, moment);
    const x = this._at[this._row];
    this._picture.set('moment', { location: x, visible: true });
    this._drawLife();
    const edges = span === null ? null : span.map(event => this._at[rowOf(this._data, event)]);
    this._picture.fill('brush', {
      left: edges === null ? [] : [edges[0]],
      right: edges === null ? [] : [edges[1]]
    });
    const [low, high] = this._view;
    if (x < low || x > high) {
      const half = (high - low) / 2;
      this._show(x - half, x + half);
    }
    const said = inWords(this._data, this._row);
    this._host.setAttribute('aria-valuenow', String(this._data.moments.event[this._row]));
    const held = formatBytes(allocatedAt(this._data, this._row));
    this._host.setAttribute('aria-valuetext', `${said}: ${held} allocated`);
    this._host.dataset.event = String(this._data.moments.event[this._row]);
  }

  wear(theme: ITheme): void {
    const picture = this._picture;
    picture.wear(theme, ['below', 'left']);
    if (!this._data.host) {
      picture.glyph('reserved', { line_color: theme.ink });
    }
    picture.glyph('process', { line_color: theme.quiet });
    picture.glyph('peak', {
      fill_color: theme.dark ? '#FFFFFF' : '#1B1F24',
      line_color: theme.ground
    });
    picture.glyph('brush', { fill_color: theme.ink, line_color: theme.ink });
    picture.set('moment', { line_color: theme.ink });
    picture.set('left grid', { grid_line_color: theme.line });
  }

  private _all(view: [number, number] | null = null): void {
    const { moments, events, duration, total } = this._data;
    this._at = this._byEvent ? moments.event : moments.t;
    this._end = this._byEvent ? Math.max(events, 1) : Math.max(duration, moments.t.at(-1) ?? 0, 1);
    this._tops = [this._at.map(() => 0)];
    for (let category = 0; category < RESERVED; category++) {
      const held = moments.held[category];
      const before = this._tops[category];
      this._tops.push(before.map((sum, row) => sum + held[row]));
      const { key } = this._data.categories[category];
      if (held.some(bytes => bytes > 0)) {
        const alpha = category < ACTIVE ? 0.94 : 0.5;
        this._picture.glyph(`area ${key}`, { fill_color: colourOf(key), fill_alpha: alpha });
      }
    }
    const others = moments.held[OTHER_PROCESSES];
    const peak = this._peakRow;
    this._limit = total - this._beside(peak) - others[peak];
    this._picture.fill('peak', { x: [this._at[peak]], y: [allocatedAt(this._data, peak)] });
    ({ strips: this._strips, rows: this._rows } = stripsOf(this._data, this._byEvent));
    this._view = view ?? [0, this._end];
    if (this._byEvent) {
      const rows = this._at.map((_, row) => row);
      this._fill([...this._at, this._end], [...rows, rows.length - 1]);
    }
    this._zoom();
    this.follow();
  }

  /** What this process holds of the card beside torch. */
  private _beside(row: number): number {
    return sumAt(this._data, row, PROCESS) - sumAt(this._data, row, RESERVED);
  }

  private get _peakRow(): number {
    return rowOf(this._data, this._data.peak.event);
  }

  private _show(low: number, high: number): void {
    this._view = shown(low, high, this._end);
    this._zoom();
  }

  private _zoom(): void {
    const [low, high] = this._view;
    this._picture.x(low, high);
    const most = roomFor(this._picture.frame.width);
    const ticks = this._byEvent ? countTicks(low, high, most) : timeTicks(low, high, most);
    this._picture.axis('below', ticks);
    this._refit();
    this._showCache();
    const near = this._reserved >= NEAR * this._limit && !this._hides;
    this._picture.y(0, this._top);
    this._picture.axis('left', byteTicks(0, this._highest));
    const limit = near || this._scale === 'card';
    const fits = this._data.process_known && this._process <= 1.02 * this._highest;
    this._picture.set('process', { visible: fits }); // else it would run through the strips
    this._host.dataset.process = String(fits);
    this._picture.set('limit', { location: this._limit, visible: limit });
    this._nameLimit(limit);
    this._drawLife();
    this._zoomed(low / this._end, high / this._end);
    if (!this._byEvent) {
      this._fill(...this._columns());
    }
    this._label();
  }

  /** The highest of what is in view decides how high the picture is. */
  private _refit(): void {
    const first = rowOfX(this._at, this._view[0]);
    const last = Math.max(rowOfX(this._at, this._view[1]), first);
    const rows = this._at.map((_, row) => row).slice(first, last + 1);
    const reserved = rows.map(row => this._tops[RESERVED][row]);
    this._reserved = Math.max(...reserved, 1);
    this._allocated = Math.max(...rows.map(row => this._tops[ACTIVE][row]));
    this._process = Math.max(...rows.map((row, i) => reserved[i] + this._beside(row)));
  }

  private get _hides(): boolean {
    return this._scale === 'fit' && cacheHides(this._allocated, this._reserved);
  }

  /** The cache as areas, or, where these would hide the rest, as a line at the edge that says so. */
  private _showCache(): void {
    const hides = this._hides;
    this._data.categories.slice(ACTIVE, RESERVED).forEach(({ key }, at) => {
      if (this._data.moments.held[ACTIVE + at].some(bytes => bytes > 0)) {
        this._picture.glyph(`area ${key}`, { fill_alpha: hides ? 0 : 0.5 });
      }
    });
    this._cacheName.hidden = !hides;
    if (hides) {
      const { left, top } = this._inner;
      const { height, width } = this._picture.frame;
      const edge = height * (1 - this._highest / this._top);
      this._cacheName.textContent = `↑ reserved, up to ${formatBytes(this._reserved)}`;
      this._cacheName.style.left = `${left}px`;
      this._cacheName.style.width = `${width}px`;
      this._cacheName.style.top = `${top + edge}px`;
    }
    if (this._byEvent && (hides || this._hid)) {
      const rows = this._at.map((_, row) => row);
      this._fill([...this._at, this._end], [...rows, rows.length - 1]);
    }
    this._hid = hides;
  }

  /** The red line says what it is. */
  private _nameLimit(visible: boolean): void {
    const { left, top } = this._inner;
    const { height, width } = this._picture.frame;
    this._limitName.hidden = !visible;
    this._limitName.style.left = `${left}px`;
    this._limitName.style.width = `${width}px`;
    this._limitName.style.top = `${top + height * (1 - this._limit / this._top)}px`;
  }

  /** The chosen tensor's life, from its birth to its free. */
  private _drawLife(): void {
    const { lives, events } = this._data;
    const life = lives.number.indexOf(this._choice.now.tensor ?? -1);
    const at = (event: number): number =>
      event >= events ? this._end : this._byEvent ? event : this._at[rowOf(this._data, event)];
    const [low, high] = this._view;
    const part = (x: number): number =>
      Math.min(Math.max((x - low) / (high - low), 0), 1) * this._picture.frame.width;
    const [from, to] = life < 0 ? [0, 0] : [at(lives.born[life] + 1), at(lives.freed[life] + 1)];
    this._life.hidden = life < 0 || to < low || from > high;
    const { left, top } = this._inner;
    this._life.style.left = `${left + part(from)}px`;
    this._life.style.width = `${Math.max(part(to) - part(from), 2)}px`;
    this._life.style.top = `${top}px`;
    this._life.style.height = `${this._picture.frame.height}px`;
  }

  /** The corner of the inner frame inside the host. */
  private get _inner(): { left: number; top: number } {
    const { left, top } = this._picture.frame;
    const box = this._host.getBoundingClientRect();
    return { left: left - box.left, top: top - box.top };
  }

  /** By events every moment lasts until the next one, and none can be lost. */
  private _columns(): [number[], number[]] {
    const width = Math.max(Math.round(this._picture.frame.width), 1);
    return columnsIn(this._at, this._tops[ACTIVE], this._view, width);
  }

  /** Draw these moments from these places on. */
  private _fill(x: number[], rows: number[]): void {
    const columns: Record<string, number[]> = { x };
    this._tops.forEach((top, i) => (columns[`y${i}`] = rows.map(one => top[one])));
    // A line above the picture would run through the strips: it stays at the edge.
    const most = this._hides ? this._highest : Infinity;
    const process = columns[`y${RESERVED}`].map((bytes, i) => bytes + this._beside(rows[i]));
    const reserved = columns[`y${RESERVED}`].map(bytes => Math.min(bytes, most));
    this._picture.fill('areas', columns);
    this._picture.fill('lines', { x, reserved, process });
  }

  /** Bytes that the picture must show. */
  private get _highest(): number {
    if (this._scale === 'card') {
      return this._data.total;
    }
    if (this._hides) {
      return this._allocated * ROOM;
    }
    if (this._reserved >= NEAR * this._limit) {
      return this._limit;
    }
    const close = this._data.process_known && this._process <= CLOSE * this._reserved;
    return close ? this._process : this._reserved;
  }

  /** Bytes at its upper edge, with room for the strips. */
  private get _top(): number {
    return (this._highest * 1.04) / (1 - STRIP * this._rows - (this._rows ? 0.02 : 0));
  }

  /** The strips that are wide enough to be seen, with names where they fit. */
  private _label(): void {
    const [low, high] = this._view;
    const pixel = (high - low) / Math.max(this._picture.frame.width, 1);
    const seen = this._strips.filter(strip => strip.right >= low && strip.left <= high);
    const crowded = new Set<number>();
    for (let row = 0; row < this._rows; row++) {
      const widths = seen.filter(strip => strip.row === row).map(strip => strip.right - strip.left);
      widths.sort((a, b) => a - b);
      if (widths.length > 8 && widths[widths.length >> 1] < 2.5 * pixel) {
        crowded.add(row);
      }
    }
    const drawn = seen.filter(strip => !crowded.has(strip.row));
    for (const row of crowded) {
      const mine = seen.filter(strip => strip.row === row);
      const text = `${mine[0].text} to ${mine[mine.length - 1].text}`;
      const [left, right] = [mine[0].left, mine[mine.length - 1].right];
      drawn.push({
        left,
        right,
        row,
        text: row === this._rows - 1 ? 'phases: zoom in' : text,
        tint: OTHER_TINT
      });
    }
    const top = (strip: IStrip): number => 1 - STRIP * strip.row;
    this._picture.fill('bands', {
      left: drawn.map(strip => strip.left),
      right: drawn.map(strip => Math.max(strip.right - pixel, strip.left)),
      bottom: drawn.map(strip => top(strip) - STRIP * 0.9),
      top: drawn.map(top),
      colour: drawn.map(strip => strip.tint),
      alpha: drawn.map(() => 1)
    });
    const inside = drawn.map(strip => [Math.max(strip.left, low), Math.min(strip.right, high)]);
    this._picture.fill('labels', {
      x: inside.map(([left, right]) => (left + right) / 2),
      y: drawn.map(strip => top(strip) - STRIP * 0.45),
      text: drawn.map((strip, i) => phaseIn(strip.text, (inside[i][1] - inside[i][0]) / pixel))
    });
  }

  // --- pointer and keys

  private _connect(): void {
    const host = this._host;
    const most = String(this._data.events);
    const role = { tabindex: '0', role: 'slider', 'aria-valuemin': '0', 'aria-valuemax': most };
    Object.entries(role).forEach(([name, value]) => host.setAttribute(name, value));
    host.setAttribute(
      'aria-label',
      'Memory over time. Left and right choose a moment, Page Up and Page Down go a tenth, Home and End the first and last, P the peak, + and - zoom.' +
        (this._kernel === null ? '' : ' Comma and full stop go to the event before and after.')
    );
    host.addEventListener('pointermove', event => this._move(event));
    host.addEventListener('pointerleave', () => this._leave());
    host.addEventListener('pointerdown', event => this._down(event));
    host.addEventListener('pointerup', event => this._up(event));
    host.addEventListener('pointercancel', () => (this._drag = null));
    host.addEventListener('dblclick', () => this.showAll());
    host.addEventListener('keydown', event => this._key(event));
    host.addEventListener('wheel', event => this._wheel(event), { passive: false });
  }

  private _xOf(event: MouseEvent): number | null {
    const { left, width } = this._picture.frame;
    const part = (event.clientX - left) / width;
    const [low, high] = this._view;
    return part < -0.02 || part > 1.02 ? null : low + Math.min(Math.max(part, 0), 1) * (high - low);
  }

  /** The moment that holds at x: the last one before it. */
  private _rowAt(x: number): number {
    const after = this._at.findIndex(at => at > x);
    const row = after < 0 ? this._at.length - 1 : Math.max(after - 1, 0);
    // Several moments on one pixel: a person points at the highest of them.
    const near = this._near;
    let best = row;
    for (let i = row; i >= 0 && x - this._at[i] <= near; i--) {
      best = allocatedAt(this._data, i) > allocatedAt(this._data, best) ? i : best;
    }
    for (let i = row + 1; i < this._at.length && this._at[i] - x <= near; i++) {
      best = allocatedAt(this._data, i) > allocatedAt(this._data, best) ? i : best;
    }
    return best;
  }

  /** A pixel and a half of the picture. */
  private get _near(): number {
    const [low, high] = this._view;
    return (1.5 * (high - low)) / Math.max(this._picture.frame.width, 1);
  }

  private _down(event: PointerEvent): void {
    const x = this._xOf(event);
    if (event.button === 0 && x !== null) {
      this._drag = { x, client: event.clientX, view: this._view };
      this._host.setPointerCapture(event.pointerId);
    }
  }

  private _move(event: PointerEvent): void {
    const x = this._xOf(event);
    if (x === null) {
      this._leave();
      return;
    }
    const drag = this._drag;
    if (drag !== null && Math.abs(event.clientX - drag.client) > CLICK) {
      if (this.panning || event.shiftKey) {
        const [low, high] = drag.view;
        const moved = ((event.clientX - drag.client) / this._picture.frame.width) * (high - low);
        this._show(low - moved, high - moved);
      } else {
        this._picture.fill('brush', { left: [Math.min(drag.x, x)], right: [Math.max(drag.x, x)] });
      }
    }
    this._hover(event, x);
  }

  private _up(event: PointerEvent): void {
    const drag = this._drag;
    this._drag = null;
    const x = this._xOf(event);
    if (drag === null || x === null) {
      this.follow();
      return;
    }
    if (Math.abs(event.clientX - drag.client) <= CLICK) {
      this._pick(x);
    } else if (!this.panning && !event.shiftKey) {
      this._brush(Math.min(drag.x, x), Math.max(drag.x, x));
    }
    this.follow();
  }

  /** Choose what is drawn at x; a kernel knows what happened between two moments of the picture. */
  private _pick(x: number): void {
    const row = this._rowAt(x);
    if (this._kernel === null || Math.abs(this._at[row] - x) <= this._near) {
      this._choice.set({ moment: this._data.moments.event[row], span: null });
    } else if (this._byEvent) {
      this._choice.set({ moment: Math.round(x), span: null });
    } else {
      this._kernel.chooseTimes([x]);
    }
  }

  private _brush(from: number, to: number): void {
    if (this._kernel !== null && !this._byEvent) {
      this._kernel.chooseTimes([from, to]);
      return;
    }
    const { event } = this._data.moments;
    const edge = (x: number): number =>
      this._kernel === null ? event[rowOfX(this._at, x)] : Math.round(x);
    const span: [number, number] = [edge(from), edge(to)];
    this._choice.set({ span, moment: event[peakBetween(this._data, ...span)] });
  }

  private _wheel(event: WheelEvent): void {
    if (!event.ctrlKey && !event.metaKey) {
      return; // the page scrolls
    }
    const x = this._xOf(event);
    if (x !== null) {
      event.preventDefault();
      const factor = Math.exp(-event.deltaY / 300);
      this._show(...zoomedAbout(x, this._view, factor));
    }
  }

  private _key(event: KeyboardEvent): void {
    const events = this._data.moments.event;
    const go = (row: number): void =>
      this._choice.set({ moment: events[Math.min(Math.max(row, 0), events.length - 1)] });
    const { moment } = this._choice.now;
    const single = (to: number): void => {
      if (this._kernel !== null) {
        this._choice.set({ moment: Math.min(Math.max(to, 0), this._data.events) });
      }
    };
    const page = Math.max(Math.round(events.length / 10), 1);
    const keys: Record<string, () => void> = {
      ',': () => single(moment - 1),
      '.': () => single(moment + 1),
      ArrowLeft: () => go(this._row - (event.shiftKey ? 10 : 1)),
      ArrowRight: () => go(this._row + (event.shiftKey ? 10 : 1)),
      PageUp: () => go(this._row + page),
      PageDown: () => go(this._row - page),
      Home: () => go(0),
      End: () => go(events.length - 1),
      p: () => go(this._peakRow),
      '+': () => this.zoomBy(1.6),
      '-': () => this.zoomBy(1 / 1.6),
      '0': () => this.showAll()
    };
    if (this._choice.now.span !== null) {
      keys.Escape = () => this._choice.set({ span: null }); // else it is the notebook's
    }
    const action = keys[event.key];
    if (action !== undefined && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      action();
    }
  }

  private _leave(): void {
    this._tooltip.hidden = this._hair.hidden = true;
  }

  private _hover(event: PointerEvent, x: number): void {
    const row = this._rowAt(x);
    const { frame } = this._picture;
    const box = this._host.getBoundingClientRect();
    const [low, high] = this._view;
    const left = frame.left - box.left + ((this._at[row] - low) / (high - low)) * frame.width;
    this._hair.style.left = `${left}px`;
    this._hair.style.top = `${frame.top - box.top}px`;
    this._hair.style.height = `${frame.height}px`;
    const bytes = ((frame.bottom - event.clientY) / frame.height) * this._top;
    this._tooltip.replaceChildren(...this._said(row, bytes));
    this._tooltip.hidden = this._hair.hidden = false;
    const room = box.width - this._tooltip.offsetWidth - 4;
    const beside = left + 14 > room ? left - this._tooltip.offsetWidth - 14 : left + 14;
    this._tooltip.style.left = `${Math.max(beside, 0)}px`;
    this._tooltip.style.top = `${frame.top - box.top + 8}px`;
  }

  private _said(row: number, bytes: number): HTMLElement[] {
    const { held } = this._data.moments;
    const order = held
      .map((column, category) => ({ category, size: column[row] }))
      .filter(({ category, size }) => category < RESERVED && size > 0);
    let sum = 0;
    const under = order.find(({ size }) => (sum += size) >= bytes)?.category;
    const largest = [...order].sort((a, b) => b.size - a.size).slice(0, 6);
    if (under !== undefined && !largest.some(({ category }) => category === under)) {
      largest[largest.length - 1] = { category: under, size: held[under][row] };
    }
    const reserved = `, reserved ${formatBytes(sumAt(this._data, row, RESERVED))}`;
    return [
      h('div', { class: 'nbx-Tooltip-head' }, inWords(this._data, row)),
      h(
        'div',
        {},
        `allocated ${formatBytes(allocatedAt(this._data, row))}${this._data.host ? '' : reserved}`
      ),
      ...largest.map(({ category, size }) => {
        const { key, label } = this._data.categories[category];
        const attributes = {
          class: category === under ? 'nbx-Tooltip-row nbx-mod-under' : 'nbx-Tooltip-row'
        };
        return h(
          'div',
          attributes,
          swatch(paintOf(key)),
          h('span', {}, label),
          h('b', {}, formatBytes(size))
        );
      })
    ];
  }

  private readonly _life = h('div', { class: 'nbx-Life', 'aria-hidden': 'true' });
  private _allocated = 0;
  private _hid = false;
  private readonly _cacheName = h('div', { class: 'nbx-Limit nbx-mod-cache' });
  private readonly _limitName = h('div', { class: 'nbx-Limit' });
  private readonly _tooltip: HTMLElement;
  private readonly _hair: HTMLElement;
  private _zoomed: (low: number, high: number) => void = () => undefined;
  private _byEvent: boolean;
  private _scale: Scale = 'fit';
  private _at: number[] = [];
  /** Bytes below each category at each moment, then below all of them. */
  private _tops: number[][] = [];
  private _end = 1;
  private _row = 0;
  private _rows = 0;
  private _reserved = 1;
  private _process = 1;
  private _limit = 1;
  private _strips: IStrip[] = [];
  private _view: [number, number] = [0, 1];
  private _drag: { x: number; client: number; view: [number, number] } | null = null;
}
