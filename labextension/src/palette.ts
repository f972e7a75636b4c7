// Written by tools/palette.py from nbmem/views/palette.py; do not edit.

/** A category's colour, in the order in which they are stacked. */
export const COLOURS: ReadonlyMap<string, string> = new Map([
  ['weights', '#0072B2'],
  ['buffers', '#88CCEE'],
  ['gradients', '#D55E00'],
  ['optimizer_state', '#F0C808'],
  ['inputs', '#332288'],
  ['activations', '#44AA99'],
  ['output_gradients', '#882255'],
  ['temporaries', '#E8D9A0'],
  ['workspace', '#EE8866'],
  ['communication', '#7E9DE6'],
  ['user_tensors', '#BD4F6A'],
  ['unknown', '#594A0D'],
  ['rounding', '#D0D0D0'],
  ['pending', '#8C7FB8'],
  ['cached_releasable', '#BCC3CA'],
  ['cached_stuck', '#8A939C'],
  ['frameworks', '#7C7D31'],
  ['frameworks_cached', '#C6CF9E'],
  ['context', '#5F6B76'],
  ['other_processes', '#A59C92'],
  ['driver', '#D9D2C8'],
  ['free', '#F4F4F2']
]);

/** The colour of the lines over a category's own. */
export const HATCHES: ReadonlyMap<string, string> = new Map([
  ['rounding', '#9A9A9A'],
  ['cached_releasable', '#8A939C'],
  ['cached_stuck', '#5F6B76'],
  ['frameworks_cached', '#7C7D31'],
  ['other_processes', '#7C746B'],
  ['driver', '#A59C92']
]);

/** The ground of a phase's band. */
export const PHASE_TINTS: ReadonlyMap<string, string> = new Map([
  ['load', '#BFD3BA'],
  ['input', '#7FC4BC'],
  ['forward', '#B7CBE2'],
  ['backward', '#E2BFAD'],
  ['optimizer', '#DFD39A'],
  ['zero_grad', '#C9C9C9'],
  ['inference', '#CDC0E0']
]);

/** Allocated bytes that a reading does not split into categories. */
export const ALLOCATED = '#6A55E0';

export const OTHER_TINT = '#C9C9C9';
/** Text on a phase's tint. */
export const TINT_INK = '#2B2B2B';
