/** Bokeh's documents: checked, drawn, filled with data and given the page's colours. */

import { h } from './dom.js';
import type { ITick } from './ticks.js';
import type { ITheme } from './theme.js';
import { letGo, watchViewport, type IViewClass } from './viewport.js';

/** What is used of a BokehJS model. */
interface IModel {
  setv(values: Record<string, unknown>): void;
}

interface IRenderer extends IModel {
  name: string | null;
  glyph: IModel;
}

interface IDocument {
  title(): string;
  get_model_by_name(name: string): IModel | null;
  clear(): void;
}

interface IPlot extends IModel {
  x_range: IModel;
  y_range: IModel;
  renderers: IRenderer[];
  document: IDocument;
  properties: { inner_width: { change: { connect(slot: () => void): boolean } } };
}

interface IView {
  el: HTMLElement;
  model: IPlot;
  frame: { bbox: { left: number; top: number; width: number; height: number } };
}

/** The views of one document: its plot, and what BokehJS puts beside it. */
interface IViews {
  roots: Iterable<IView>;
  clear(): void;
}

/** What is used of BokehJS. */
export interface IBokeh {
  version: string;
  /** Every document that was ever made; one that is left in it lives as long as the page. */
  documents: IDocument[];
  embed: { embed_item(item: unknown, element: HTMLElement): Promise<IViews> };
  Models: { get(name: string): { prototype: { default_view: IViewClass } } };
}

/** The models of nbmem/views/explorer/figures.py: no callbacks, no markup, no addresses. */
const MODELS = new Set(
  (
    'AllIndices AllLabels BasicTickFormatter CDSView ColumnDataSource DocumentConfig FixedTicker ' +
    'GlyphRenderer Grid LinearAxis LinearScale Notifications Plot Quad Range1d Scatter Segment Selection ' +
    'Span Step Text Title Toolbar UnionRenderers VAreaStep VBar'
  ).split(' ')
);
/** Attributes that could bring foreign styles, addresses or code. */
const FORBIDDEN = /^(js_|styles|stylesheets|css_|html_|syncable|subscribed_events|callbacks|defs)/;
const KINDS = new Set(['object', 'map', 'field', 'value', 'number', 'ndarray', 'symbol', 'set']);

/** A document that is not one of nbmem's. */
export class ForeignFigureError extends Error {}

/** Throw unless a document holds nothing but what nbmem's own have: a saved notebook may lie. */
export function checkFigure(node: unknown): void {
  if (Array.isArray(node)) {
    node.forEach(checkFigure);
    return;
  }
  if (typeof node === 'string' && node.includes('$$')) {
    throw new ForeignFigureError('a formula'); // BokehJS would fetch MathJax for it
  }
  if (typeof node !== 'object' || node === null) {
    return;
  }
  const { type, name } = node as { type?: unknown; name?: unknown };
  if (type !== undefined && !(typeof type === 'string' && KINDS.has(type))) {
    throw new ForeignFigureError(`a ${JSON.stringify(type).slice(0, 40)}`);
  }
  if (type === 'object' && !(typeof name === 'string' && MODELS.has(name))) {
    throw new ForeignFigureError(`the model ${String(name).slice(0, 40)}`);
  }
  for (const [key, value] of Object.entries(node)) {
    const empty = Array.isArray(value) && value.length === 0;
    if (FORBIDDEN.test(key) && !empty) {
      throw new ForeignFigureError(`the attribute ${key.slice(0, 40)}`);
    }
    checkFigure(value);
  }
}

export type Columns = Record<string, ArrayLike<number | string | null>>;

/** The pictures of one explorer: drawn by their names, and taken out together. */
export class Pictures {
  constructor(
    private readonly _figures: [string, string][],
    private readonly _bokeh: () => Promise<IBokeh>
  ) {}

  /**
   * Draw into `host`, which must be attached: BokehJS measures it. Throws a GoneError if the
   * explorer went away in the meantime.
   */
  async draw(name: string, host: HTMLElement): Promise<Picture> {
    const bokeh = await this._bokeh();
    sweep(bokeh);
    const item: unknown = JSON.parse(this._figures.find(([one]) => one === name)?.[1] ?? '');
    checkFigure(item);
    if (this._isDisposed) {
      throw new GoneError();
    }
    watchViewport(bokeh.Models.get('Plot').prototype.default_view);
    const target = h('div', { class: 'nbx-Canvas', inert: true });
    host.append(target);
    const title = `nbmem ${++titles}`;
    (item as { doc: { title: string } }).doc.title = title;
    this._pending.add(title);
    const drawn = new Picture(host, bokeh, await bokeh.embed.embed_item(item, target));
    this._pending.delete(title);
    if (this._isDisposed) {
      drawn.dispose();
      throw new GoneError();
    }
    this._drawn.push(drawn);
    return drawn;
  }

  dispose(): void {
    this._isDisposed = true;
    this._drawn.splice(0).forEach(picture => picture.dispose());
    this._pending.forEach(title => unwanted.add(title));
    this._pending.clear();
    void this._bokeh().then(sweep, () => undefined);
  }

  private readonly _drawn: Picture[] = [];
  /** Documents that BokehJS has begun, by title: taken out of the page, one of them never ends. */
  private readonly _pending = new Set<string>();
  private _isDisposed = false;
}

/** How many documents were begun on this page: a title of its own for each. */
let titles = 0;

/**
 * Documents of explorers that are gone. BokehJS makes a document some time after it was asked to:
 * one that is not there yet is looked for again whenever there is something to draw or to let go.
 */
const unwanted = new Set<string>();

/** Take what nobody wants out of BokehJS's list, which keeps it as long as the page. */
function sweep({ documents }: IBokeh): void {
  for (const title of unwanted) {
    const at = documents.findIndex(document => document.title() === title);
    if (at >= 0) {
      unwanted.delete(title);
      documents.splice(at, 1)[0].clear();
    }
  }
}

/** What was to be drawn is not wanted any more. */
export class GoneError extends Error {}

/** A drawn document. */
export class Picture {
  constructor(
    readonly host: HTMLElement,
    private readonly _bokeh: IBokeh,
    private readonly _views: IViews
  ) {
    [this._view] = _views.roots;
    host.dataset.bokeh = _bokeh.version;
  }

  /** Call back when the picture has another width. */
  onResize(slot: () => void): void {
    this._view.model.properties.inner_width.change.connect(slot);
  }

  set(name: string, values: Record<string, unknown>): void {
    this._model(name).setv(values);
  }

  fill(source: string, data: Columns): void {
    this._model(`${source} data`).setv({ data });
  }

  glyph(name: string, values: Record<string, unknown>): void {
    (this._model(name) as IRenderer).glyph.setv(values);
  }

  /** Take out the glyphs that have nothing to draw: each costs time at every change of the data. */
  keep(wanted: (name: string) => boolean): void {
    const { model } = this._view;
    model.setv({ renderers: model.renderers.filter(({ name }) => wanted(name ?? '')) });
  }

  x(start: number, end: number): void {
    this._view.model.x_range.setv({ start, end });
  }

  y(start: number, end: number): void {
    this._view.model.y_range.setv({ start, end });
  }

  axis(place: 'below' | 'left', ticks: ITick[]): void {
    this.set(`${place} axis`, {
      major_label_overrides: new Map(ticks.map(({ at, text }) => [at, text.replaceAll('$', 'S')]))
    });
    this.set(`${place} ticker`, { ticks: ticks.map(({ at }) => at) });
  }

  /** Axes and texts in the page's colours. */
  wear(theme: ITheme, places: ('below' | 'left')[]): void {
    for (const place of places) {
      this.set(`${place} axis`, {
        major_label_text_color: theme.quiet,
        major_tick_line_color: theme.line
      });
    }
  }

  /** The inner frame in the page's pixels. */
  get frame(): DOMRect {
    const box = this._view.el.getBoundingClientRect();
    const { left, top, width, height } = this._view.frame.bbox;
    return new DOMRect(box.left + left, box.top + top, width, height);
  }

  /** Leave nothing of it: BokehJS keeps a document, its views and canvases until it is told. */
  dispose(): void {
    const { document } = this._view.model;
    const { documents } = this._bokeh;
    letGo(this._view);
    this._views.clear();
    document.clear();
    documents.splice(documents.indexOf(document), 1);
    this.host.replaceChildren();
  }

  private _model(name: string): IModel {
    const model = this._view.model.document.get_model_by_name(name);
    if (model === null) {
      throw new ForeignFigureError(`no ${name}`);
    }
    return model;
  }

  private readonly _view: IView;
}

/** A text cut to a width in pixels, a path from its front; empty where not even three letters fit. */
export function fitting(text: string, width: number, size = 11): string {
  const most = Math.floor((width - 8) / (0.58 * size));
  if (text.length <= most) {
    return text;
  }
  const path = /^[\w.]+$/.test(text) ? text.split('.') : [];
  for (let i = 1; i < path.length; i++) {
    const end = `…${path.slice(i).join('.')}`;
    if (end.length <= most) {
      return end;
    }
  }
  return most >= 4 ? `${text.slice(0, most - 1)}…` : '';
}

const SHORT = new Map([
  ['forward', 'fwd'],
  ['backward', 'bwd'],
  ['optimizer', 'opt'],
  ['zero_grad', 'zero'],
  ['inference', 'inf'],
  ['input', 'in']
]);

/**
 * The name of a phase cut to a width: whole, short, or as much as fits. A step is its number then,
 * or nothing: every `step 12` begins with the same letters.
 */
export function phaseIn(name: string, width: number): string {
  if (fitting(name, width) === name) {
    return name;
  }
  const [, step] = /^step (\d+)$/.exec(name) ?? [];
  if (step !== undefined) {
    return fitting(step, width) === step ? step : '';
  }
  return fitting(SHORT.get(name) ?? name, width);
}
