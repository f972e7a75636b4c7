/** The explorer: the headline, the timeline, and beneath it what the chosen moment was made of. */

import { RESERVED } from '../categories.js';
import { formatBytes } from '../format.js';
import type { Choice, IKernel } from './choice.js';
import { learn, type ICloseup, type IData } from './data.js';
import { button, choice as pick, h, swatch } from './dom.js';
import { GoneError, Pictures, type IBokeh } from './figures.js';
import { Growth } from './growth.js';
import { Holders } from './holders.js';
import { rove } from './keys.js';
import { Largest } from './largest.js';
import { LedgerView } from './ledger.js';
import { growingLines, linesOf, noLines } from './lines.js';
import { allocatedAt, inWords, peakBetween, rowOf } from './moments.js';
import { Overview } from './overview.js';
import { growthInWords, Phases } from './phases.js';
import { PoolView } from './pool.js';
import { TensorCard } from './tensor.js';
import { paintOf, themeOf, watchTheme, type ITheme } from './theme.js';
import { Timeline, type Scale } from './timeline.js';
import { historyOf, tipsOf, type IActions } from './tips.js';

interface IPart {
  wear(theme: ITheme): void;
  follow?(): void;
}

interface ITab {
  key: string;
  label: string;
  panel: HTMLElement;
  /** Draws its pictures when it is first seen. */
  draw: (() => Promise<IPart[]>) | null;
  /** What has been drawn in it: follows while it is seen. */
  parts: IPart[];
}

/** How long a kernel may take to tell of a moment before the nearest that is known is drawn. */
const PATIENCE_MS = 300;

let count = 0;

export class Explorer {
  readonly node = h('div', { class: 'nbx-Explorer', 'data-testid': 'nbx-explorer' });

  constructor(
    private readonly _data: IData,
    private readonly _choice: Choice,
    private readonly _actions: IActions,
    bokeh: () => Promise<IBokeh>,
    private readonly _kernel: IKernel | null = null
  ) {
    this._pictures = new Pictures(_data.figures, bokeh);
    this._ledger = new LedgerView(_data, _choice);
    this._largest = new Largest(_data, _choice);
    this._overview = new Overview(_data, part => this._timeline?.centre(part));
    this._tensor = new TensorCard(_data, _choice, _actions);
    this._id = `nbx-${++count}`;
    this._build();
    this._ends.push(_choice.listen(() => this._follow()));
    this._ends.push(watchTheme(() => this._wear()));
    // BokehJS measures its place, and an output is rendered before it is attached.
    const seen = new ResizeObserver(() => {
      if (this.node.offsetWidth > 0) {
        seen.disconnect();
        void this._draw();
      }
    });
    seen.observe(this.node);
    this._ends.push(() => seen.disconnect());
    this._follow();
  }

  /** Add what a kernel has told of the chosen moment. */
  learn(told: ICloseup): void {
    learn(this._data, told);
    this._timeline?.renew();
    this._follow();
  }

  dispose(): void {
    clearTimeout(this._late);
    this._ends.splice(0).forEach(end => end());
    this._pictures.dispose();
    this.node.remove();
  }

  private _build(): void {
    const data = this._data;
    const still = stillness(data);
    const toolbar = this._toolbar();
    rove(toolbar);
    this.node.append(
      ...(still === ''
        ? [toolbar, this._canvas, this._overview.node, this._legend()]
        : [h('p', { class: 'nbx-Words' }, still)])
    );
    this._tabs = this._makeTabs();
    const list = h('div', { class: 'nbx-Tabs', role: 'tablist', 'aria-label': 'What to look at' });
    for (const tab of this._tabs) {
      const made = button(tab.label, () => this._select(tab.key), {
        role: 'tab',
        id: `${this._id}-tab-${tab.key}`,
        'aria-controls': `${this._id}-${tab.key}`,
        'data-tab': tab.key
      });
      made.addEventListener('keydown', event => this._tabKey(event));
      list.append(made);
      tab.panel.id = `${this._id}-${tab.key}`;
      tab.panel.setAttribute('role', 'tabpanel');
      tab.panel.setAttribute('aria-labelledby', made.id);
    }
    this.node.append(this._where, this._tensor.node, list, ...this._tabs.map(tab => tab.panel));
    const kept = this._tabs.some(({ key }) => key === this._choice.tab);
    this._select(kept ? this._choice.tab : 'moment');
  }

  private _toolbar(): HTMLElement {
    const zoom = (text: string, label: string, action: () => void): HTMLElement =>
      button(text, action, { 'aria-label': label, title: label });
    return h(
      'div',
      { class: 'nbx-Toolbar', role: 'toolbar', 'aria-label': 'The timeline' },
      pick(
        'Count from left to right',
        [
          ['time', 'time'],
          ['events', 'events']
        ],
        this._data.by_event ? 'events' : 'time',
        value => {
          if (this._timeline !== null) {
            this._timeline.byEvent = value === 'events';
            this._overview.byEvent = value === 'events';
          }
        }
      ),
      pick<Scale>(
        'Height of the picture',
        [
          ['fit', 'fit'],
          ['card', 'whole card']
        ],
        'fit',
        value => {
          if (this._timeline !== null) {
            this._timeline.scale = value;
          }
        }
      ),
      pick(
        'What dragging does',
        [
          ['select', 'select'],
          ['pan', 'pan']
        ],
        'select',
        value => {
          if (this._timeline !== null) {
            this._timeline.panning = value === 'pan';
          }
        }
      ),
      h(
        'div',
        { class: 'nbx-Choice', role: 'group', 'aria-label': 'Zoom' },
        zoom('+', 'Zoom in (also Ctrl and the wheel)', () => this._timeline?.zoomBy(1.6)),
        zoom('−', 'Zoom out', () => this._timeline?.zoomBy(1 / 1.6)),
        zoom('all', 'Show all of it', () => this._timeline?.showAll())
      ),
      h('span', { class: 'nbx-Space' }),
      h(
        'span',
        { class: 'nbx-Moments' },
        button('peak', () => this._goto(this._data.peak.event), { 'data-testid': 'nbx-peak' }),
        button('end', () => this._goto(this._data.events)),
        this._clear
      )
    );
  }

  private _legend(): HTMLElement {
    const { categories, moments } = this._data;
    const legend = h('div', { class: 'nbx-Legend', 'aria-hidden': 'true' });
    categories.slice(0, RESERVED).forEach(({ key, label }, category) => {
      if (moments.held[category].some(bytes => bytes > 0)) {
        legend.append(h('span', {}, swatch(paintOf(key)), label));
      }
    });
    if (!this._data.host) {
      const text = `reserved, up to ${formatBytes(this._data.peak.reserved)}`;
      legend.append(h('span', {}, h('span', { class: 'nbx-Dash' }), text));
    }
    if (this._data.peak.process !== null) {
      const text = `process, up to ${formatBytes(this._data.peak.process)}`;
      legend.append(
        h('span', { class: 'nbx-mod-process' }, h('span', { class: 'nbx-Dash nbx-mod-fine' }), text)
      );
    }
    return legend;
  }

  private _makeTabs(): ITab[] {
    const data = this._data;
    const tabs: ITab[] = [this._momentTab()];
    if (data.growth !== null) {
      const view = new Growth(data, data.growth, this._choice, this._actions);
      const draw = (): Promise<IPart[]> => Promise.resolve([view]);
      tabs.push({
        key: 'growth',
        label: 'Growth',
        panel: h('div', {}, view.node),
        draw,
        parts: []
      });
    }
    if (data.phases.length > 0) {
      tabs.push(this._phasesTab());
    }
    if (!data.host && (data.pools[0]?.segments.length ?? 0) > 0) {
      tabs.push(this._poolTab());
    }
    const panel =
      data.lines === null
        ? h('div', {}, noLines())
        : scrolling('Lines', linesOf(data.lines, this._actions, growingLines(data.growth)));
    tabs.push({ key: 'lines', label: 'Lines', panel, draw: null, parts: [] });
    if (data.tips.length > 0) {
      const panel = h('div', {}, tipsOf(data, this._actions));
      tabs.push({ key: 'tips', label: `Tips (${data.tips.length})`, panel, draw: null, parts: [] });
    }
    if (data.history.length > 0) {
      const panel = scrolling('Cells', historyOf(data.history));
      tabs.push({ key: 'cells', label: 'Cells', panel, draw: null, parts: [] });
    }
    return tabs;
  }

  private _momentTab(): ITab {
    const canvas = h('div', { class: 'nbx-Picture nbx-mod-holders' });
    const path = h('div');
    const told = this._data.lives.born.length > 0;
    const right = told
      ? [
          h('div', { class: 'nbx-Title' }, 'Who held it: category, module or variable, tensor'),
          path,
          canvas,
          this._largest.node
        ]
      : [];
    const panel = h(
      'div',
      {},
      this._ledger.bars,
      h(
        'div',
        { class: 'nbx-Columns' },
        h('div', { class: 'nbx-Side' }, this._ledger.table),
        h('div', { class: 'nbx-Main' }, ...right)
      )
    );
    const draw = async (): Promise<IPart[]> => {
      const holders = await Holders.draw(this._pictures, this._data, this._choice, canvas);
      path.append(holders.path);
      return [holders];
    };
    return { key: 'moment', label: 'At this moment', panel, draw: told ? draw : null, parts: [] };
  }

  private _phasesTab(): ITab {
    const many = this._data.steps.length >= 3;
    const compared = this._data.phases.some(phase => phase.held !== undefined);
    const bars = h('div', { class: 'nbx-Picture nbx-mod-phases' });
    const growth = many ? h('div', { class: 'nbx-Picture nbx-mod-growth' }) : null;
    const table = h('div', { class: 'nbx-Scroll' }); // its buttons take the focus there

    const side = h(
      'div',
      { class: 'nbx-Main' },
      h('div', { class: 'nbx-Title' }, 'Peak of each step, and what it left (dashed)'),
      growth,
      h('p', { class: 'nbx-Words' }, growthInWords(this._data))
    );
    const wide = h(
      'div',
      { class: 'nbx-Main nbx-mod-wide' },
      h(
        'div',
        { class: 'nbx-Title' },
        'Peak of each phase by category, step beside step; the line is what it left'
      ),
      bars
    );
    const pictures = h('div', { class: 'nbx-Columns' }, wide, many ? side : null);
    pictures.hidden = !compared; // outside of steps there is nothing to stand side by side
    const panel = h('div', {}, pictures, table);
    const draw = async (): Promise<IPart[]> => {
      const phases = await Phases.draw(this._pictures, this._data, this._choice, bars, growth);
      table.append(phases.table);
      return [phases];
    };
    return { key: 'phases', label: 'Phases', panel, draw, parts: [] };
  }

  private _poolTab(): ITab {
    const canvas = h('div', { class: 'nbx-Picture nbx-mod-pool' });
    const figures = h('div', { class: 'nbx-Scroll' });
    const panel = h('div', {}, canvas, figures);
    const draw = async (): Promise<IPart[]> => {
      const view = await PoolView.draw(this._pictures, this._data, this._choice, canvas);
      canvas.before(view.words);
      figures.append(view.table);
      return [view];
    };
    return { key: 'pool', label: 'Pool', panel, draw, parts: [] };
  }

  private _select(key: string): void {
    for (const tab of this._tabs) {
      const chosen = tab.key === key;
      tab.panel.hidden = !chosen;
      const made = this.node.querySelector<HTMLElement>(`[role=tab][data-tab=${tab.key}]`);
      made?.setAttribute('aria-selected', String(chosen));
      made?.setAttribute('tabindex', chosen ? '0' : '-1');
    }
    this._choice.tab = key;
    if (this._timeline !== null) {
      void this._drawTab();
    }
  }

  private _tabKey(event: KeyboardEvent): void {
    const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    if (step !== 0) {
      event.preventDefault();
      event.stopPropagation();
      const at = this._tabs.findIndex(tab => tab.key === this._choice.tab) + step;
      this._select(this._tabs[(at + this._tabs.length) % this._tabs.length].key);
      this.node.querySelector<HTMLElement>('[role=tab][aria-selected=true]')?.focus();
    }
  }

  private async _draw(): Promise<void> {
    const began = performance.now();
    try {
      if (stillness(this._data) === '') {
        this._timeline = await Timeline.draw(
          this._pictures,
          this._data,
          this._choice,
          this._canvas,
          this._kernel
        );
        this._timeline.zoomed = (low, high) => this._overview.show(low, high);
      }
      this._wear();
      await this._drawTab();
      this.node.dataset.drawnMs = (performance.now() - began).toFixed(0);
      this.node.dataset.drawn = 'true';
    } catch (error) {
      this._fail(error, this._canvas);
    }
  }

  private _fail(error: unknown, where: HTMLElement): void {
    if (error instanceof GoneError) {
      return;
    }
    const text = `The pictures cannot be drawn (${String(error).slice(0, 200)}); the tables are whole.`;
    where.replaceChildren(h('p', { class: 'nbx-Words' }, text));
    this.node.dataset.drawn = 'failed';
  }

  private async _drawTab(): Promise<void> {
    const tab = this._tabs.find(one => one.key === this._choice.tab);
    const draw = tab?.draw;
    if (tab !== undefined && draw !== null && draw !== undefined) {
      tab.draw = null;
      try {
        tab.parts.push(...(await draw()));
      } catch (error) {
        this._fail(error, tab.panel);
        return;
      }
      this._wear();
    }
    if (tab !== undefined) {
      this._follow();
      tab.panel.dataset.drawn = 'true';
    }
  }

  private _goto(event: number): void {
    const row = rowOf(this._data, event);
    this._choice.set({ moment: this._data.moments.event[row], span: null });
  }

  private _follow(): void {
    const { moment, span } = this._choice.now;
    const row = rowOf(this._data, moment);
    const data = this._data;
    const peak = row === rowOf(data, data.peak.event) ? 'At the peak' : 'At';
    this._where.replaceChildren(
      h('b', {}, `${formatBytes(allocatedAt(data, row))} allocated`),
      ` · ${peak === 'At' ? '' : 'the peak · '}${inWords(data, row)}`
    );
    if (data.moments.event[row] !== moment) {
      this._where.append(
        this._kernel === null
          ? ' · the nearest that is known here'
          : ' · the nearest that is known until the kernel has told of the chosen one'
      );
    }
    this._clear.hidden = span === null;
    if (span !== null) {
      const [first, last] = span.map(event => rowOf(data, event));
      const change = allocatedAt(data, last) - allocatedAt(data, first);
      const top = peakBetween(data, span[0], span[1]);
      this._where.append(
        h(
          'div',
          {},
          `The selection, events ${span[0].toLocaleString('en-US')} to ${span[1].toLocaleString('en-US')}: ` +
            `allocated changed by ${formatBytes(change, true)}, peak ${formatBytes(allocatedAt(data, top))}.`
        )
      );
    }
    this._tensor.follow();
    this._timeline?.follow();
    clearTimeout(this._late);
    if (this._kernel !== null && data.moments.event[row] !== moment) {
      this._late = setTimeout(() => this._followBelow(), PATIENCE_MS); // it may be busy for minutes
    } else {
      this._followBelow();
    }
  }

  private _followBelow(): void {
    if (this._choice.tab === 'moment') {
      this._ledger.follow();
      this._largest.follow();
    }
    this._tabs.find(tab => tab.key === this._choice.tab)?.parts.forEach(part => part.follow?.());
  }

  private _wear(): void {
    const theme = themeOf(this.node);
    this.node.classList.toggle('nbx-mod-dark', theme.dark);
    this._timeline?.wear(theme);
    this._tabs.forEach(tab => tab.parts.forEach(part => part.wear(theme)));
  }

  private readonly _id: string;
  private readonly _ends: (() => void)[] = [];
  private readonly _pictures: Pictures;
  private readonly _ledger: LedgerView;
  private readonly _largest: Largest;
  private readonly _tensor: TensorCard;
  private readonly _overview: Overview;
  private readonly _canvas = h('div', {
    class: 'nbx-Picture nbx-mod-timeline',
    'data-testid': 'nbx-timeline'
  });
  private readonly _where = h('div', {
    class: 'nbx-Where',
    role: 'status',
    'data-testid': 'nbx-where'
  });
  private readonly _clear = button('clear selection', () => this._choice.set({ span: null }));
  private _tabs: ITab[] = [];
  private _late: ReturnType<typeof setTimeout> | undefined;
  private _timeline: Timeline | null = null;
}

/** A table that is scrolled within its width. */
function scrolling(label: string, table: HTMLElement): HTMLElement {
  return h(
    'div',
    { class: 'nbx-Scroll', tabindex: '0', role: 'region', 'aria-label': label },
    table
  );
}

/** Why there is no curve, in a sentence; empty where there is one. */
function stillness({ events, peak }: IData): string {
  if (peak.reserved === 0) {
    return 'No memory was allocated while this was recorded, so there is no curve to draw.';
  }
  return events > 0
    ? ''
    : 'Nothing was allocated or freed while this was recorded: all of it was there before.';
}
