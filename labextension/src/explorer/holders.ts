/** Who held it: category, module or variable, tensor, as boxes as wide as their bytes. */

import type { Choice } from './choice.js';
import type { IData } from './data.js';
import { Boxes, type IBox } from './boxes.js';
import { button, h } from './dom.js';
import type { Picture, Pictures } from './figures.js';
import { rove } from './keys.js';
import { holderInWords, holdersAt, rowOf, type IHolder } from './moments.js';
import type { ITheme } from './theme.js';

/** Narrower boxes are not drawn: their bytes show as a gap in the row, and in the table. */
const LEAST = 1 / 4000;

interface IPlace {
  holder: IHolder;
  path: IHolder[];
}

export class Holders {
  readonly path = h('nav', { class: 'nbx-Path', 'aria-label': 'Holders: where the picture is' });

  private constructor(
    private readonly _data: IData,
    private readonly _choice: Choice,
    picture: Picture
  ) {
    this._boxes = new Boxes<IPlace>(
      picture,
      ({ holder }) => holderInWords(_data, holder),
      place => this._chosen(place),
      'Who held it, as boxes. Arrows go to the next box, Enter goes inside or chooses a tensor.'
    );
  }

  static async draw(
    pictures: Pictures,
    data: IData,
    choice: Choice,
    host: HTMLElement
  ): Promise<Holders> {
    return new Holders(data, choice, await pictures.draw('holders', host));
  }

  follow(): void {
    const row = rowOf(this._data, this._choice.now.moment);
    const seen = `${this._data.moments.event[row]} ${this._data.lives.number.length}`;
    if (seen !== this._seen) {
      this._seen = seen;
      this._roots = holdersAt(this._data, row);
      // Stay where the person has gone as long as it is there.
      let level = this._roots;
      const stayed: IHolder[] = [];
      for (const { label } of this._inside) {
        const next = level.find(holder => holder.label === label);
        if (next === undefined || next.parts.length === 0) {
          break;
        }
        stayed.push(next);
        level = next.parts;
      }
      this._inside = stayed;
      this._draw();
    }
    this._mark();
  }

  wear(theme: ITheme): void {
    this._boxes.wear(theme);
  }

  private _chosen({ holder, path }: IPlace): void {
    if (holder.life !== null) {
      const tensor = this._data.lives.number[holder.life];
      this._choice.set({ tensor: this._choice.now.tensor === tensor ? null : tensor });
    } else if (holder.parts.length > 0) {
      this._go(path);
    }
  }

  private _go(path: IHolder[]): void {
    this._inside = path;
    this._draw();
    this._mark();
  }

  /** Frame the chosen tensor. */
  private _mark(): void {
    const life = this._data.lives.number.indexOf(this._choice.now.tensor ?? -1);
    this._boxes.mark(({ holder }) => holder.life !== null && holder.life === life);
  }

  private _draw(): void {
    const inside = this._inside;
    const shown = inside.length === 0 ? this._roots : [inside[inside.length - 1]];
    const above = inside.slice(0, -1);
    const whole = Math.max(
      shown.reduce((sum, holder) => sum + holder.bytes, 0),
      1
    );
    const boxes: IBox<IPlace>[] = [];
    const add = (holders: IHolder[], left: number, level: number, path: IHolder[]): void => {
      for (const holder of holders) {
        const right = left + holder.bytes;
        if (holder.bytes / whole > LEAST) {
          const here = [...path, holder];
          boxes.push({
            left,
            right,
            top: level + 0.02,
            bottom: level + 0.98,
            paint: this._data.categories[holder.category].key,
            alpha: [1, 0.78, 0.6][Math.min(level, 2)],
            text: holder.label,
            what: { holder, path: here }
          });
          add(holder.parts, left, level + 1, here);
        }
        left = right;
      }
    };
    add(shown, 0, 0, above);
    this._boxes.draw(boxes, whole, 3);
    const crumbs: (HTMLElement | string)[] = [button('all', () => this._go([]))];
    inside.forEach((holder, depth) => {
      crumbs.push(
        ' › ',
        button(holder.label, () => this._go(inside.slice(0, depth + 1)))
      );
    });
    this.path.replaceChildren(...crumbs);
    rove(this.path);
  }

  private readonly _boxes: Boxes<IPlace>;
  private _seen = '';
  private _roots: IHolder[] = [];
  private _inside: IHolder[] = [];
}
