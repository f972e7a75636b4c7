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

export class Boxes<T> {
  constructor(
    private readonly _picture: Picture,
    private readonly _words: (what: T) => string,
    private readonly _choose: (what: T) => void
  ) {
    const { host } = _picture;
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
    _picture.onResize(() => this._label());
  }

  draw(boxes: IBox<T>[], width: number, height: number): void {
    this._boxes = boxes;
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
  private _boxes: IBox<T>[] = [];
  private _size: [number, number] = [1, 1];
  private _ink = '#000000';
  private _dark = false;
  private _labels = 0;
}
