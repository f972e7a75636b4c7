/** Boxes with texts inside, side by side or in rows: the holders and the pool. */

import { h } from './dom.js';
import { fitting, type Picture } from './figures.js';
import { colourOf, inkOn, type ITheme } from './theme.js';

/** What is hatched has a glyph of its own in the picture. */
const HATCHED = ['rounding', 'cached_releasable', 'cached_stuck'];

export interface IBox<T> {
  left: number;
  right: number;
  top: number;
  bottom: number;
  /** Key of the category whose paint it wears. */
  paint: string;
  alpha: number;
  text: string;
  what: T;
}

type Place = Pick<IBox<unknown>, 'left' | 'right' | 'top'>;

/** Which box a key goes to from one of them; null where it goes to none. */
export function nextBox(key: string, at: number, boxes: readonly Place[]): number | null {
  const here = boxes[at];
  const far = (from: number, to: Place): number => Math.abs((to.left + to.right) / 2 - from);
  const of = (fits: (box: Place) => boolean): number[] =>
    boxes.map((_, i) => i).filter(i => fits(boxes[i]));
  const least = (some: number[], by: (box: Place) => number): number | null =>
    some.reduce<number | null>((a, b) => (a === null || by(boxes[b]) < by(boxes[a]) ? b : a), null);
  if (here === undefined) {
    return null;
  }
  const middle = (here.left + here.right) / 2;
  const row = of(box => box.top === here.top);
  const rows = (down: boolean): number | null => {
    const beyond = of(box => (down ? box.top > here.top : box.top < here.top));
    const next = least(beyond, box => Math.abs(box.top - here.top));
    const found = beyond.filter(i => next !== null && boxes[i].top === boxes[next].top);
    const around = found.filter(i => boxes[i].left <= middle && middle <= boxes[i].right);
    return least(around.length > 0 ? around : found, box => far(middle, box));
  };
  switch (key) {
    case 'ArrowRight':
      return least(
        row.filter(i => boxes[i].left > here.left),
        box => box.left
      );
    case 'ArrowLeft':
      return least(
        row.filter(i => boxes[i].left < here.left),
        box => -box.left
      );
    case 'Home':
      return least(row, box => box.left);
    case 'End':
      return least(row, box => -box.left);
    case 'ArrowDown':
    case 'ArrowUp':
      return rows(key === 'ArrowDown');
    default:
      return null;
  }
}

export class Boxes<T> {
  constructor(
    private readonly _picture: Picture,
    private readonly _words: (what: T) => string,
    private readonly _choose: (what: T) => void,
    label: string
  ) {
    const { host } = _picture;
    const role = { tabindex: '0', role: 'group', 'aria-label': label };
    Object.entries(role).forEach(([name, value]) => host.setAttribute(name, value));
    this._cursor.hidden = true;
    host.append(this._cursor, this._said);
    host.addEventListener('keydown', event => this._key(event));
    host.addEventListener('focus', () => {
      if (host.matches(':focus-visible')) {
        this._go(Math.max(this._at, 0)); // by a key: a click has its words from the pointer
      }
    });
    host.addEventListener('blur', () => {
      this._cursor.hidden = this._tooltip.hidden = true;
    });
    this._tooltip = h('div', { class: 'nbx-Tooltip', 'aria-hidden': 'true' });
    this._tooltip.hidden = true;
    host.append(this._tooltip);
    host.addEventListener('pointermove', event => this._hover(event));
    host.addEventListener('pointerleave', () => (this._tooltip.hidden = true));
    host.addEventListener('click', event => {
      const found = this._under(event);
      if (found !== null) {
        this._choose(found.what);
      }
    });
    host.addEventListener('pointerdown', () => (this._cursor.hidden = true));
    _picture.onResize(() => this._label());
  }

  draw(boxes: IBox<T>[], width: number, height: number): void {
    this._boxes = boxes;
    this._at = Math.min(this._at, 0); // other boxes: back to the first
    this._size = [width, height];
    this._picture.x(0, width);
    this._picture.y(height, 0);
    const ground = (box: IBox<T>): string =>
      box.paint === '' ? 'rgba(128, 128, 128, 0.18)' : colourOf(box.paint);
    const edges = (some: IBox<T>[]): Record<string, number[]> => ({
      left: some.map(box => box.left),
      right: some.map(box => box.right),
      top: some.map(box => box.top),
      bottom: some.map(box => box.bottom),
      alpha: some.map(box => box.alpha)
    });
    const plain = boxes.filter(box => !HATCHED.includes(box.paint));
    this._picture.fill('boxes', { ...edges(plain), colour: plain.map(ground) });
    for (const paint of HATCHED) {
      this._picture.fill(`boxes ${paint}`, edges(boxes.filter(box => box.paint === paint)));
    }
    this._label();
    if (!this._cursor.hidden) {
      this._go(0);
    }
  }

  /** Draw a frame around some of them. */
  mark(chosen: (what: T) => boolean): void {
    const marked = this._boxes.filter(box => chosen(box.what));
    this._picture.fill('chosen', {
      left: marked.map(box => box.left),
      right: marked.map(box => box.right),
      top: marked.map(box => box.top),
      bottom: marked.map(box => box.bottom)
    });
  }

  wear(theme: ITheme): void {
    this._ink = theme.ink;
    this._dark = theme.dark;
    for (const name of ['boxes', ...HATCHED.map(paint => `boxes ${paint}`)]) {
      this._picture.glyph(name, { line_color: theme.ground });
    }
    this._picture.glyph('chosen', { line_color: theme.ink });
    this._label();
  }

  private _label(): void {
    const { width } = this._picture.frame;
    const pixel = this._size[0] / Math.max(width, 1);
    const named = this._boxes
      .map(box => ({ box, text: fitting(box.text, (box.right - box.left) / pixel) }))
      .filter(({ text }) => text !== '');
    // BokehJS reads the new colours for the old texts: there must never be fewer than before.
    const blank = new Array<string>(Math.max(this._labels - named.length, 0)).fill('');
    this._labels = named.length + blank.length;
    const zeros = blank.map(() => 0);
    const ink = ({ box }: { box: IBox<T> }): string =>
      box.paint === '' ? this._ink : inkOn(colourOf(box.paint), box.alpha, this._dark);
    this._picture.fill('labels', {
      x: [...named.map(({ box }) => box.left + 5 * pixel), ...zeros],
      y: [...named.map(({ box }) => (box.top + box.bottom) / 2), ...zeros],
      text: [...named.map(({ text }) => text), ...blank],
      colour: [...named.map(ink), ...blank.map(() => this._ink)]
    });
  }

  private _under(event: MouseEvent): IBox<T> | null {
    const frame = this._picture.frame;
    const x = ((event.clientX - frame.left) / frame.width) * this._size[0];
    const y = ((event.clientY - frame.top) / frame.height) * this._size[1];
    const inside = (box: IBox<T>): boolean =>
      box.left <= x && x <= box.right && box.top <= y && y <= box.bottom;
    return this._boxes.find(inside) ?? null;
  }

  private _key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== this._picture.host) {
      return;
    }
    const chosen = this._cursor.hidden ? undefined : this._boxes[this._at];
    if ((event.key === 'Enter' || event.key === ' ') && chosen !== undefined) {
      event.preventDefault();
      this._choose(chosen.what);
      return;
    }
    const first = event.key.startsWith('Arrow') ? Math.max(this._at, 0) : null;
    const next = chosen === undefined ? first : nextBox(event.key, this._at, this._boxes);
    if (next !== null) {
      event.preventDefault();
      this._go(next);
    }
  }

  /** Put the keyboard's frame around a box, and say what it is. */
  private _go(at: number): void {
    const box = this._boxes[at];
    this._cursor.hidden = this._tooltip.hidden = box === undefined;
    if (box === undefined) {
      return;
    }
    this._at = at;
    const { host, frame } = this._picture;
    const around = host.getBoundingClientRect();
    const x = (value: number): number =>
      frame.left - around.left + (value / this._size[0]) * frame.width;
    const y = (value: number): number =>
      frame.top - around.top + (value / this._size[1]) * frame.height;
    const { style } = this._cursor;
    style.left = `${x(box.left)}px`;
    style.top = `${y(box.top)}px`;
    style.width = `${x(box.right) - x(box.left)}px`;
    style.height = `${y(box.bottom) - y(box.top)}px`;
    this._said.textContent = this._tooltip.textContent = this._words(box.what);
    const room = around.width - this._tooltip.offsetWidth - 4;
    this._tooltip.style.left = `${Math.max(Math.min(x(box.left), room), 0)}px`;
    this._tooltip.style.top = `${y(box.bottom) + 4}px`;
  }

  private _hover(event: PointerEvent): void {
    const found = this._under(event);
    this._tooltip.hidden = found === null;
    this._picture.host.style.cursor = found === null ? '' : 'pointer';
    if (found === null) {
      return;
    }
    this._tooltip.textContent = this._words(found.what);
    const box = this._picture.host.getBoundingClientRect();
    const room = box.width - this._tooltip.offsetWidth - 4;
    this._tooltip.style.left = `${Math.max(Math.min(event.clientX - box.left + 12, room), 0)}px`;
    this._tooltip.style.top = `${event.clientY - box.top + 16}px`;
  }

  private readonly _tooltip: HTMLElement;
  private readonly _cursor = h('div', { class: 'nbx-Cursor', 'aria-hidden': 'true' });
  private readonly _said = h('div', { class: 'nbx-Said', role: 'status' });
  private _at = -1;
  private _boxes: IBox<T>[] = [];
  private _size: [number, number] = [1, 1];
  private _ink = '#000000';
  private _dark = false;
  private _labels = 0;
}
