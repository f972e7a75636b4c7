/** Times and what they are times of, together again: nbmem/views/explorer/output.py takes them apart. */

/** In microseconds. */
interface ITimes {
  about: string;
  by_event: boolean;
  duration: number;
  t: number[];
  bands: [number, number][];
  phases: [number, number][];
  steps: number[];
  cells: [number, number][];
  history: number[];
}

const US = 1000;

/** The data as the explorer reads them, in nanoseconds. */
export function together(still: unknown, times: unknown): unknown {
  const told = still as Record<string, never[]> & { moments: object };
  const { about, by_event, duration, ...rest } = times as ITimes;
  const ns = (us: number): number => us * US;
  return {
    ...told,
    about,
    by_event,
    duration: ns(duration),
    moments: { ...told.moments, t: rest.t.map(ns) },
    bands: told.bands.map((band: number[], i) => [...rest.bands[i].map(ns), ...band]),
    phases: told.phases.map((row: object, i) => {
      const [t0, t1] = rest.phases[i].map(ns);
      return { ...row, t0, t1 };
    }),
    steps: told.steps.map(([step, ...row]: number[], i) => [step, ns(rest.steps[i]), ...row]),
    cells: (told.cells ?? []).map(([name, ...row]: number[], i) => [
      name,
      ...rest.cells[i].map(ns),
      ...row
    ]),
    history: told.history.map((row: object, i) => ({ ...row, duration: ns(rest.history[i]) }))
  };
}
