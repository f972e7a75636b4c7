/** A report under a cell: compact, and the explorer on demand, built when it is first seen. */

import type { Choice, IKernel } from './choice.js';
import { compactOf } from './compact.js';
import type { ICloseup, IData } from './data.js';
import { button, h } from './dom.js';
import { Explorer } from './explorer.js';
import type { IBokeh } from './figures.js';
import { keepKeys } from './keys.js';
import type { IActions } from './tips.js';

/** Pixels of an explorer that has not been seen yet. */
const HEIGHT = 900;
/** It is built a little before it comes into view. */
const MARGIN = '200px';

export interface IReportOptions {
  data: IData;
  choice: Choice;
  actions: IActions;
  bokeh: () => Promise<IBokeh>;
  /** Tells of any moment; null for a saved output. */
  kernel: IKernel | null;
  /** Whether the explorer is open at first; null where it always is. */
  open: boolean | null;
  /** Is told when a person opens or closes it. */
  opened: (open: boolean) => void;
}

let count = 0;

export class Report {
  readonly node = h('div', { class: 'nbx-Report', 'data-testid': 'nbx-report' });

  constructor(private readonly _options: IReportOptions) {
    const { data, actions, open } = _options;
    this._place.id = `nbx-explorer-${++count}`;
    if (open !== null) {
      this._toggle = button('Explore', () => this._turn(!this._isOpen), {
        class: 'nbx-Button nbx-Expand',
        'aria-expanded': 'false',
        'aria-controls': this._place.id
      });
      // Who comes near it is likely to open it: BokehJS takes a second to load.
      const load = (): void => void _options.bokeh().catch(() => undefined); // opening it says why
      this._toggle.addEventListener('pointerenter', load, { once: true });
      this._toggle.addEventListener('focus', load, { once: true });
    }
    this.node.append(compactOf(data, actions, this._toggle), this._place);
    this._endKeys = keepKeys(this.node);
    if (open !== false) {
      this._open();
    }
  }

  /** Add what a kernel has told of the chosen moment. */
  learn(told: ICloseup): void {
    if (this._explorer === null) {
      this._told.push(told);
    } else {
      this._explorer.learn(told);
    }
  }

  dispose(): void {
    this._endKeys();
    this._close();
    this.node.remove();
  }

  private _turn(open: boolean): void {
    if (open) {
      this._open();
    } else {
      this._close();
    }
    this._options.opened(open);
  }

  private _open(): void {
    this._isOpen = true;
    this._toggle?.setAttribute('aria-expanded', 'true');
    this._place.hidden = false;
    this._place.style.minHeight = `${HEIGHT}px`;
    this._seen = new IntersectionObserver(
      entries => {
        if (entries.some(entry => entry.isIntersecting)) {
          this._seen?.disconnect();
          this._mount();
        }
      },
      { rootMargin: MARGIN }
    );
    this._seen.observe(this._place);
  }

  private _mount(): void {
    const { data, choice, actions, bokeh, kernel } = this._options;
    this._explorer = new Explorer(data, choice, actions, bokeh, kernel);
    this._told.splice(0).forEach(told => this._explorer?.learn(told));
    this._place.replaceChildren(this._explorer.node);
    this._place.style.minHeight = '';
  }

  private _close(): void {
    this._isOpen = false;
    this._toggle?.setAttribute('aria-expanded', 'false');
    this._seen?.disconnect();
    this._explorer?.dispose();
    this._explorer = null;
    this._place.hidden = true;
  }

  private readonly _place = h('div', { hidden: true });
  private readonly _told: ICloseup[] = [];
  private readonly _endKeys: () => void;
  private _toggle: HTMLElement | null = null;
  private _isOpen = false;
  private _seen: IntersectionObserver | null = null;
  private _explorer: Explorer | null = null;
}
