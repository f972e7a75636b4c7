/** A report in a page without a kernel and without a notebook: its explorer is always open. */

import { Choice } from '../explorer/choice.js';
import type { IData } from '../explorer/data.js';
import type { IBokeh } from '../explorer/figures.js';
import { NO_ACTIONS } from '../explorer/tips.js';
import { Report } from '../explorer/report.js';

export function standing(
  data: IData,
  bokeh: () => Promise<IBokeh>,
  choice = new Choice({ moment: data.peak.event, span: null, tensor: null })
): Report {
  return new Report({
    data,
    choice,
    actions: NO_ACTIONS,
    bokeh,
    kernel: null,
    open: null,
    opened: () => undefined
  });
}
