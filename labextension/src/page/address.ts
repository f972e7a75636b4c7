/** The chosen moment in a page's address: a copied link opens the report at the same moment. */

import type { Choice } from '../explorer/choice.js';

/** `event` of a page's first report, `event2` of its second. */
const keyOf = (report: number): string => (report === 0 ? 'event' : `event${report + 1}`);
const OURS = /^#event\d*=\d+(&event\d*=\d+)*$/;

/** The event that an address names for a report; null for none. */
export function eventIn(hash: string, report: number): number | null {
  const named = OURS.test(hash) ? new URLSearchParams(hash.slice(1)).get(keyOf(report)) : null;
  return named === null ? null : Number(named);
}

/** The address for another event of a report; those of the other reports stay. */
export function withEvent(hash: string, report: number, event: number): string {
  const words = new URLSearchParams(OURS.test(hash) ? hash.slice(1) : '');
  words.set(keyOf(report), String(event));
  return `#${words.toString()}`;
}

/** Of the moments that a page has, the last one up to an event. */
export function momentAt(moments: ArrayLike<number>, event: number): number {
  const before = Array.from(moments).filter(moment => moment <= event);
  return before.length > 0 ? Math.max(...before) : moments[0];
}

/** Write each chosen moment into the page's address. */
export function keepInAddress(choice: Choice, report: number): void {
  let written = choice.now.moment;
  choice.listen(({ moment }) => {
    if (moment === written) {
      return;
    }
    written = moment;
    try {
      history.replaceState(history.state, '', withEvent(location.hash, report, moment));
    } catch {
      // A page without an address of its own (srcdoc, a sandboxed frame) keeps none.
    }
  });
}
