/** The same explorer as an anywidget: its traits follow what a person chooses, and the other way. */

import { Choice, type IChoice, type IKernel } from './choice.js';
import { unpack, unpackCloseup, type IData } from './data.js';
import { h } from './dom.js';
import type { IBokeh } from './figures.js';
import { Report } from './report.js';
import { NO_ACTIONS } from './tips.js';

interface IModel {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(name: string, callback: (...args: never[]) => void): void;
  off(name: string, callback: (...args: never[]) => void): void;
  send(message: unknown): void;
}

const TRAITS = ['moment', 'span', 'tensor'] as const;
const POOL = Symbol.for('nbmem.bokehjs');

/** BokehJS of the kernel's own bokeh, sent once a page: the page may have no network. */
function bokehOf(model: IModel): Promise<IBokeh> {
  const page = globalThis as unknown as { Bokeh?: IBokeh; [POOL]?: Map<string, Promise<IBokeh>> };
  const pool = (page[POOL] ??= new Map<string, Promise<IBokeh>>());
  const version = String(model.get('bokeh'));
  const known = pool.get(version);
  if (known !== undefined) {
    return known;
  }
  const loading = new Promise<IBokeh>((resolve, reject) => {
    const received = (message: { kind?: string }, buffers: DataView[]): void => {
      if (message?.kind !== 'bokehjs') {
        return;
      }
      model.off('msg:custom', received);
      const url = URL.createObjectURL(
        new Blob([buffers[0] as DataView<ArrayBuffer>], { type: 'text/javascript' })
      );
      const script = h('script', { src: url });
      const before = page.Bokeh;
      script.onload = () => {
        URL.revokeObjectURL(url);
        const mine = page.Bokeh;
        if (before !== undefined) {
          page.Bokeh = before; // the page's own, of whatever version
        }
        if (mine === undefined) {
          reject(new Error('BokehJS did not load'));
        } else {
          resolve(mine);
        }
      };
      script.onerror = () => reject(new Error('the page refuses to run BokehJS'));
      document.head.append(script);
    };
    model.on('msg:custom', received);
    model.send({ kind: 'bokehjs' });
  });
  pool.set(version, loading);
  loading.catch(() => pool.delete(version));
  return loading;
}

function chosen(model: IModel): IChoice {
  const [moment, span, tensor] = TRAITS.map(name => model.get(name));
  return {
    moment: moment as number,
    span: span as [number, number] | null,
    tensor: tensor as number | null
  };
}

async function render({ model, el }: { model: IModel; el: HTMLElement }): Promise<() => void> {
  el.classList.add('nbx-Widget');
  const choice = new Choice(chosen(model));
  const kernel: IKernel = { chooseTimes: times => model.send({ kind: 'times', times }) };
  let report: Report | null = null;
  let data: IData | null = null;
  const learn = async (): Promise<void> => {
    const told = model.get('closeup');
    if (data !== null && 'data' in (told as object)) {
      const closeup = await unpackCloseup(data, told);
      report?.learn(closeup);
    }
  };
  const draw = async (): Promise<void> => {
    report?.dispose();
    try {
      data = await unpack(model.get('report'));
      report = new Report({
        data,
        choice,
        actions: NO_ACTIONS,
        bokeh: () => bokehOf(model),
        kernel,
        open: null,
        opened: () => undefined
      });
      el.replaceChildren(report.node);
      await learn();
    } catch (error) {
      el.replaceChildren(h('p', {}, (error as Error).message));
    }
  };
  const follow = (): void => choice.set(chosen(model));
  const tell = choice.listen(now => {
    TRAITS.filter(name => model.get(name) !== now[name]).forEach(name =>
      model.set(name, now[name])
    );
    model.save_changes();
  });
  const redraw = (): void => void draw();
  TRAITS.forEach(name => model.on(`change:${name}`, follow));
  const listen = (): void => void learn();
  model.on('change:report', redraw);
  model.on('change:closeup', listen);
  await draw();
  return () => {
    tell();
    TRAITS.forEach(name => model.off(`change:${name}`, follow));
    model.off('change:report', redraw);
    model.off('change:closeup', listen);
    report?.dispose();
  };
}

export default { render };
