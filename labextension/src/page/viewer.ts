/** The page onto which a recording or a snapshot is dropped: it is read here, and stays here. */

import type { IData } from '../explorer/data.js';
import { button, choice as pick, h } from '../explorer/dom.js';
import type { IBokeh } from '../explorer/figures.js';
import type { Report } from '../explorer/report.js';
import { clipped } from '../format.js';
import { cardsIn, type Card } from './file.js';
import { FileError } from './refused.js';
import { standing } from './standing.js';

const ASKS = 'Drop a recording of nbmem (.nbmem) or a snapshot of torch (.pickle) here';

export class Viewer {
  constructor(
    host: HTMLElement,
    private readonly _bokeh: () => Promise<IBokeh>
  ) {
    this._input.addEventListener('change', () => {
      void this._open(this._input.files?.[0]);
      this._input.value = ''; // the same file may be chosen again
    });
    this._zone.append(
      h('p', {}, h('b', {}, ASKS)),
      button('Choose a file', () => this._input.click()),
      this._input,
      h('p', { class: 'nbv-Quiet' }, 'It is read in this page. Nothing is sent anywhere.')
    );
    host.replaceChildren(this._zone, this._said, this._cards, this._place);
    // Anywhere on the page: a browser would leave it for a file that is dropped beside the zone.
    document.addEventListener('dragover', event => {
      event.preventDefault();
      this._zone.classList.add('nbv-mod-over');
    });
    document.addEventListener('dragleave', event => {
      if (event.relatedTarget === null) {
        this._zone.classList.remove('nbv-mod-over');
      }
    });
    document.addEventListener('drop', event => {
      event.preventDefault();
      this._zone.classList.remove('nbv-mod-over');
      void this._open(event.dataTransfer?.files[0]);
    });
  }

  private async _open(file: File | undefined): Promise<void> {
    if (file === undefined) {
      return;
    }
    const turn = ++this._turn;
    const name = clipped(file.name, 120);
    this._clear(`Reading ${name} …`);
    await new Promise(resolve => setTimeout(resolve)); // the sentence is seen before the work begins
    try {
      const cards = await cardsIn(new Uint8Array(await file.arrayBuffer()), name);
      if (turn === this._turn) {
        this._clear('');
        this._show(name, cards);
      }
    } catch (error) {
      if (turn === this._turn) {
        this._clear(`${name} cannot be shown: ${reason(error)}.`);
        this._said.dataset.refused = 'true';
      }
    }
  }

  private _show(name: string, cards: Card[]): void {
    document.title = `nbmem: ${name}`;
    this._zone.classList.add('nbv-mod-done');
    this._draw(cards[0][1]);
    if (cards.length > 1) {
      const names = cards.map(([card], i) => [String(i), `card ${card}`] as const);
      this._cards.append(pick('Card', names, '0', i => this._draw(cards[Number(i)][1])));
    }
  }

  private _draw(data: IData): void {
    this._report?.dispose();
    this._report = standing(data, this._bokeh);
    this._place.replaceChildren(this._report.node);
  }

  private _clear(said: string): void {
    this._report?.dispose();
    this._report = null;
    this._cards.replaceChildren();
    this._place.replaceChildren();
    delete this._said.dataset.refused;
    this._said.textContent = said;
  }

  private readonly _zone = h('section', { class: 'nbv-Zone', 'aria-label': 'The file' });
  private readonly _input = h('input', {
    type: 'file',
    hidden: true,
    'aria-label': 'A recording or a snapshot'
  });
  private readonly _said = h('p', { class: 'nbv-Said', role: 'status' });
  private readonly _cards = h('div', { class: 'nbx-Report nbv-Cards' });
  private readonly _place = h('div', { class: 'nbv-Report' });
  private _report: Report | null = null;
  private _turn = 0;
}

function reason(error: unknown): string {
  if (error instanceof FileError) {
    return error.message;
  }
  return `it cannot be drawn (${String(error).slice(0, 200)}); if nbmem or torch wrote it, please report it`;
}
