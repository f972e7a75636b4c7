/** The explorer in a page that stands alone: no kernel, no network; BokehJS is bundled with it. */

// @ts-expect-error the minified module has no types
import * as bundled from '@bokeh/bokehjs/build/js/bokeh.esm.min.js';

import { Choice } from '../explorer/choice.js';
import { unpack } from '../explorer/data.js';
import { h } from '../explorer/dom.js';
import type { IBokeh } from '../explorer/figures.js';
import { FIT_MIME, fitChart, fitOf } from '../explorer/fitchart.js';
import { OOM_MIME, oomCard, oomOf, tracebackBefore } from '../explorer/oomcard.js';
import { NO_ACTIONS } from '../explorer/tips.js';
import { eventIn, keepInAddress, momentAt } from './address.js';
import { standing } from './standing.js';
import { Viewer } from './viewer.js';

/** Written by nbmem/views/exports/interactive_page.py: a picture with tables, then the data in a script. */
const DATA = 'script[type="application/vnd.nbmem.report+json"]';
const CARD = `script[type="${OOM_MIME}"]`;
const FIT = `script[type="${FIT_MIME}"]`;

function bokeh(): Promise<IBokeh> {
  const { default: inner } = bundled as { default?: IBokeh };
  return Promise.resolve(inner?.embed ? inner : (bundled as unknown as IBokeh));
}

/** Put the explorer where a still picture stands; what cannot be read leaves the picture there. */
async function enliven(script: Element, index: number): Promise<void> {
  const still = script.previousElementSibling as HTMLElement | null;
  try {
    const data = await unpack(JSON.parse(script.textContent ?? ''));
    const named = eventIn(location.hash, index);
    const moment = named === null ? data.peak.event : momentAt(data.moments.event, named);
    const choice = new Choice({ moment, span: null, tensor: null });
    keepInAddress(choice, index);
    const report = standing(data, bokeh, choice);
    script.after(report.node, scope(data.events, data.moments.event.length - 1));
    still?.remove();
  } catch (error) {
    const text = `This is a picture: ${(error as Error).message}`;
    script.after(h('p', { class: 'nbx-mod-still' }, text));
  }
}

/** Put a card or a chart where its HTML stands; what cannot be read leaves that there. */
function replaceStill(script: Element, make: (data: unknown) => HTMLElement): void {
  const still = script.previousElementSibling as HTMLElement | null;
  try {
    const made = make(JSON.parse(script.textContent ?? ''));
    script.after(h('div', { class: 'nbx-Report' }, made));
    still?.remove();
  } catch {
    // The HTML is whole without it.
  }
}

/** How much of the recording the page has: without Python nobody can be asked for the rest. */
function scope(events: number, known: number): HTMLElement {
  const number = (count: number): string => count.toLocaleString('en-US');
  const text =
    known >= events
      ? 'Every moment of the recording is in this page.'
      : `${number(known)} of the recording's ${number(events)} moments are in this page, every peak ` +
        'among them; for any other, open the recording itself (nbmem.open, then t.widget()).';
  return h('p', { class: 'nbx-mod-still', style: 'font-size:12px;opacity:0.75' }, text);
}

/** Begin with a report at once, or when what it is folded into is opened. */
function begin(script: Element, index: number): void {
  const folded = script.closest('details:not([open])');
  if (folded === null) {
    void enliven(script, index);
  } else {
    folded.addEventListener('toggle', () => void enliven(script, index), { once: true });
  }
}

for (const script of document.querySelectorAll(CARD)) {
  replaceStill(script, data => oomCard(oomOf(data), NO_ACTIONS, tracebackBefore(script)));
}
for (const script of document.querySelectorAll(FIT)) {
  replaceStill(script, data => fitChart(fitOf(data)));
}
document.querySelectorAll(DATA).forEach(begin);

/** Written by nbmem/views/exports/viewer.py: a page for any file. */
const viewer = document.getElementById('nbmem-viewer');
if (viewer !== null) {
  new Viewer(viewer, bokeh);
}
