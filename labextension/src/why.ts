/** Why there is nothing to see, in one sentence, and what can be done about it. */

import { clipped } from './format.js';
import { VERSION, type ISample } from './messages.js';
import { newest, type IKernelState } from './state.js';

/** As much of JupyterLab's translation bundle as is needed here. */
export interface ITranslator {
  __(text: string, ...values: unknown[]): string;
}

/** A sentence, and the button or menu below it. */
export interface IReason {
  sentence: string;
  offer: 'load' | 'card' | null;
}

/** Null where there is something to see. `state` is null if no notebook or console is open. */
export function whyNothing(state: IKernelState | null, trans: ITranslator): IReason | null {
  if (state === null) {
    return said(trans.__('Open a notebook or a console to see the memory of its GPU.'));
  }
  const link = state.link;
  switch (link.kind) {
    case 'no-kernel':
      return said(trans.__('This notebook has no kernel. Start one to see its memory.'));
    case 'starting':
      return said(trans.__('The kernel is starting.'));
    case 'restarting':
      return said(trans.__('The kernel is restarting: its memory is given back.'));
    case 'dead':
      return said(trans.__('The kernel has died, and its memory with it. Restart it to go on.'));
    case 'asking':
      return said(
        link.busy
          ? trans.__('The kernel is busy: nbmem is seen here when it speaks or the cell has run.')
          : trans.__('Asking the kernel whether nbmem is loaded.')
      );
    case 'other-language':
      return said(
        trans.__('nbmem follows Python kernels, and this one runs %1.', clipped(link.language, 40))
      );
    case 'not-loaded':
      return { sentence: trans.__('nbmem is not loaded in this kernel.'), offer: 'load' };
    case 'not-installed':
      return {
        sentence: trans.__(
          'nbmem is not installed in this kernel. Run %pip install nbmem in a cell, then load it.'
        ),
        offer: 'load'
      };
    case 'failed':
      return { sentence: trans.__('nbmem could not be loaded: %1', link.error), offer: 'load' };
    case 'loading':
      return said(trans.__('Loading nbmem; a cell that runs is waited for.'));
    case 'too-old':
      return said(
        trans.__(
          'The nbmem of this kernel is too old for the sidebar. Update it: %pip install -U nbmem'
        )
      );
    case 'other-version':
      return said(
        trans.__(
          'The nbmem of this kernel speaks version %1, the sidebar version %2. Install the same nbmem in both.',
          link.version,
          VERSION
        )
      );
    case 'live':
      return isOfSomething(newest(state)) || state.ranks !== null
        ? null
        : whyNoReading(state, trans);
  }
}

function isOfSomething(sample: ISample | null): boolean {
  return sample !== null && (sample.cards.length > 0 || sample.host !== null);
}

function whyNoReading(state: IKernelState, trans: ITranslator): IReason {
  if (state.complete && state.cards.length === 0) {
    if (state.choices.length > 0) {
      return {
        sentence: trans.__('There is no GPU here. A virtual card can stand in:'),
        offer: 'card'
      };
    }
    return said(trans.__('There is no GPU that nbmem can see here.'));
  }
  if (state.cell !== null) {
    return said(trans.__('A cell runs and holds nothing on the GPU yet.'));
  }
  return said(trans.__('Nothing is on the GPU now. Run a cell that uses it.'));
}

function said(sentence: string): IReason {
  return { sentence, offer: null };
}
