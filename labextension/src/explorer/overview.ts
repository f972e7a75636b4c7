/** All of the curve in small below the timeline, with what is in view: a click goes there. */

import type { IData } from './data.js';
import { h } from './dom.js';
import { sparkOf } from './spark.js';

export class Overview {
  readonly node = h('div', { class: 'nbx-Overview', 'aria-hidden': 'true' });

  /** @param go Goes to a part of the recording, from 0 to 1. */
  constructor(
    private readonly _data: IData,
    go: (part: number) => void
  ) {
    this.show(0, 1);
    this.byEvent = _data.by_event;
    const point = (event: PointerEvent): void => {
      const { left, width } = this.node.getBoundingClientRect();
      go((event.clientX - left) / Math.max(width, 1));
    };
    this.node.addEventListener('pointerdown', event => {
      this.node.setPointerCapture(event.pointerId);
      point(event);
    });
    this.node.addEventListener('pointermove', event => {
      if (event.buttons === 1) {
        point(event);
      }
    });
  }

  /** Count events or time from left to right. */
  set byEvent(value: boolean) {
    this.node.replaceChildren(sparkOf(this._data, value), this._window);
  }

  /** What is in view, from 0 to 1. */
  show(low: number, high: number): void {
    this.node.hidden = high - low > 0.999;
    this._window.style.left = `${100 * low}%`;
    this._window.style.width = `${100 * (high - low)}%`;
  }

  private readonly _window = h('div', { class: 'nbx-Overview-window' });
}
