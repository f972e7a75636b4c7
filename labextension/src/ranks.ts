/** Figures of ranks together: how many run, and the scale on which they are drawn. */

import type { TranslationBundle } from '@jupyterlab/translation';

import type { IRanksNow } from './messages.js';

/** What the bars of all ranks are drawn on: the most that one holds from its driver. */
export function scaleOf(ranks: IRanksNow): number {
  return Math.max(0, ...ranks.ranks.map(rank => Math.max(rank.reserved ?? 0, rank.peak ?? 0)));
}

/** How many ranks run and have failed, as `3 of 4 run, 1 failed`. */
export function countsOf(ranks: IRanksNow, trans: TranslationBundle): string {
  const count = (...states: string[]): number =>
    ranks.ranks.filter(rank => states.includes(rank.state)).length;
  const failed = count('failed', 'lost');
  const parts = [
    trans.__('%1 of %2 run', count('running', 'silent'), ranks.size),
    ...(failed > 0 ? [trans.__('%1 failed', failed)] : [])
  ];
  return parts.join(', ');
}
