/** The one line of the status bar: what is on the card of the kernel in front, or on its host. */

import { clipped, exactBytes, formatBytes, formatPeak } from './format.js';
import type { ICardSample, IHostSample, ISample } from './messages.js';
import { newest, type IKernelState } from './state.js';
import { whyNothing, type ITranslator } from './why.js';

/** Shares are of the whole memory, from 0 to 1; null where its total is not known. */
export interface IStatus {
  text: string;
  title: string;
  allocated: number | null;
  peak: number | null;
}

/** Null where no kernel is in front that nbmem could follow. */
export function statusOf(state: IKernelState | null, trans: ITranslator): IStatus | null {
  if (state === null || NOBODY.has(state.link.kind)) {
    return null;
  }
  const cards = state.link.kind === 'live' ? (newest(state)?.cards ?? []) : [];
  const fullest = [...cards].sort((a, b) => share(b, b.allocated) - share(a, a.allocated))[0];
  const host = state.link.kind === 'live' ? hostOf(newest(state)) : null;
  if (fullest === undefined && host !== null) {
    const whole = { ...host, allocated: host.process };
    return {
      text: trans.__('RAM %1', amounts(whole, formatBytes, trans)),
      title: trans.__('This process: %1', amounts(whole, exactBytes, trans)),
      allocated: share(whole, whole.allocated),
      peak: share(whole, whole.peak)
    };
  }
  if (fullest === undefined) {
    const why = whyNothing(state, trans)?.sentence ?? '';
    return { text: trans.__('GPU –'), title: why, allocated: null, peak: null };
  }
  const card = cards.length > 1 ? trans.__('GPU %1', fullest.index) : trans.__('GPU');
  const known = fullest.total !== null;
  return {
    text: `${card} ${amounts(fullest, formatBytes, trans)}`,
    title: cards.map(one => `${nameOf(one, trans)}: ${amounts(one, exactBytes, trans)}`).join('\n'),
    allocated: known ? share(fullest, fullest.allocated) : null,
    peak: known ? share(fullest, fullest.peak) : null
  };
}

/** The host's memory, where that is what a sample is of. */
export function hostOf(sample: ISample | null): IHostSample | null {
  return sample === null || sample.cards.length > 0 ? null : sample.host;
}

/** What a card is called, whether or not the driver says. */
export function nameOf(
  card: Pick<ICardSample, 'index' | 'name' | 'virtual'>,
  trans: ITranslator
): string {
  const name = card.name === null ? trans.__('GPU %1', card.index) : clipped(card.name, 60);
  return card.virtual ? trans.__('%1 (virtual)', name) : name;
}

const NOBODY: ReadonlySet<string> = new Set([
  'no-kernel',
  'starting',
  'restarting',
  'dead',
  'other-language'
]);

function amounts(
  card: Pick<ICardSample, 'allocated' | 'peak' | 'peak_exact' | 'total'>,
  write: (bytes: number) => string,
  trans: ITranslator
): string {
  const now =
    card.total === null
      ? write(card.allocated)
      : trans.__('%1 of %2', write(card.allocated), write(card.total));
  return trans.__('%1, peak %2', now, formatPeak(card.peak, card.peak_exact, write));
}

function share(card: Pick<ICardSample, 'total'>, bytes: number): number {
  return card.total === null ? 0 : Math.min(bytes / Math.max(card.total, 1), 1);
}
