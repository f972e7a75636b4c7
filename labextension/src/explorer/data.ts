/** The explorer's data, as nbmem/views/explorer/data.py writes it, unpacked and checked. */

import { CATEGORIES, FREE, type ICategory } from '../categories.js';
import FIGURES from './figures.json' with { type: 'json' };
import { mapOf, type IPoolMap, type IWrittenPool } from './poolmap.js';
import { together } from './times.js';

/** Raised on the Python side when an older front end could no longer draw it. */
export const VERSION = 3;
/** The oldest that is read: with its times among the data, and figures that are passed over. */
const OLDEST = 1;
/** Bytes of JSON that are unpacked at most: a saved notebook may hold anything. */
const MOST_BYTES = 32 * 2 ** 20;

export interface IMoments {
  /** Index of the next event; ascending. */
  event: number[];
  /** Nanoseconds since the start of the recording. */
  t: number[];
  /** By category: bytes at each moment. */
  held: number[][];
  /** By category: live allocations at each moment; empty where nobody counted. */
  live: number[][];
  /** The line whose event led to each moment: an index of a text, or -1. */
  line: number[];
  /** By part of the host's memory: bytes at each moment, -1 where nobody says. */
  parts: number[][];
}

/** What the host's memory is of, across the categories: said below the line that it is a part of. */
export interface IHostPart {
  key: string;
  /** `active` or `process` for the sum, `free` for the category. */
  of: string;
  label: string;
  meaning: string;
}

export interface ILives {
  /** Which allocation of the recording each is. */
  number: number[];
  born: number[];
  freed: number[];
  category: number[];
  requested: number[];
  block: number[];
  name: number[];
  group: number[];
  shape: number[];
  dtype: number[];
  born_in: number[];
  line: number[];
  /** The user's lines that led to each, the innermost first. */
  stack: number[][];
  /** What kept each alive at the end. */
  holders: number[][];
}

export interface IPhase {
  name: number;
  step: number | null;
  depth: number;
  t0: number;
  t1: number;
  first: number;
  last: number;
  before: number;
  after: number;
  peak: number;
  reserved: number;
  left_out: string;
  held?: [number, number][];
}

export interface ITip {
  rule: string;
  title: string;
  evidence: string;
  /** An amount or a range; empty where a tip is not for what it saves. */
  saves: string;
  ground: string;
  code: string | null;
  command: string[] | null;
  measured: string | null;
  /** The rule by which `%nbmem try` finds it; null or absent where it cannot be tried. */
  try?: string | null;
}

export interface ICellRow {
  number: number | null;
  label: string;
  delta: number;
  kept: number;
  reserved: number;
  peak: number | null;
  /** Not there in what an older nbmem wrote, whose peaks were counted. */
  peak_exact?: boolean;
  duration: number;
  error: string | null;
}

/** What each line of the recorded code took: bytes at the peak, at the end, and in all. */
export interface ILines {
  file: string;
  /** The lines that are shown, by number; empty where nobody has their text. */
  code: [number, string][];
  rows: [number, number, number, number][];
  /** What no line took, by reason. */
  elsewhere: [string, number, number, number][];
}

/** A variable that keeps more with each step. */
export interface IGrowingHolder {
  name: string;
  category: number;
  /** Bytes that a step adds. */
  slope: number;
  /** Bytes at the end of each step. */
  held: number[];
  /** The line that adds to it, its number in the recorded code, and its text. */
  line: string;
  number: number | null;
  code: string;
  /** Who grows by how much, and where, as a sentence. */
  words: string;
}

/** What grows from step to step: numbers and ends of the steps, and what is allocated there. */
export interface IGrowth {
  steps: number[];
  events: number[];
  allocated: number[];
  words: string;
  holders: IGrowingHolder[];
}

export interface IData {
  /** The report's first sentence: one number and a judgement. */
  verdict: string;
  /** The figures of the peak, all of one moment; absent from older outputs. */
  peak_figures?: string;
  source: string;
  /** The common cards that it would run on, as a line; absent or empty where nothing is known. */
  would_run_on?: string;
  about: string;
  error: string | null;
  notes: string[];
  total: number;
  process_known: boolean;
  /** The card is the host's memory: there is no allocator that reserves. */
  host?: true;
  /** Empty of a card. */
  parts: IHostPart[];
  duration: number;
  events: number;
  by_event: boolean;
  peak: { event: number; allocated: number; reserved: number; process: number | null };
  categories: ICategory[];
  moments: IMoments;
  /** Start, duration, first event, events, name, step; -1 for none. */
  bands: [number, number, number, number, number, number][];
  /** Name, start, end, first event, event after the last. */
  cells: [number, number, number, number, number][];
  phases: IPhase[];
  /** Step, start, highest allocated, allocated at its end. */
  steps: [number, number, number, number][];
  lives: ILives;
  /** The allocator's map: of every moment first, then of single ones as they were told. */
  pools: IPoolMap[];
  tips: ITip[];
  history: ICellRow[];
  /** Null where no stacks were taken. */
  lines: ILines | null;
  /** Null where nothing grows, and where only nbmem's Python could say so. */
  growth: IGrowth | null;
  texts: string[];
  /** Name and document of each picture: nbmem's own, whatever a saved notebook holds. */
  figures: [string, string][];
}

/** Why a report cannot be drawn, for a person. */
export class DataError extends Error {}

/** What a kernel tells of single moments, and who lived at one of them. */
export interface ICloseup {
  moments: IMoments;
  lives: ILives;
  pool: IPoolMap;
  texts: string[];
}

/** Unpack what stands in a notebook's output. */
export async function unpack(output: unknown): Promise<IData> {
  const { times } = (output ?? {}) as { times?: unknown };
  const data = await unpacked(output);
  return decoded((times === undefined ? data : await joined(data, times)) as IData);
}

/** Unpack what a kernel tells. */
export async function unpackCloseup(data: IData, told: unknown): Promise<ICloseup> {
  return decodedCloseup(data, (await unpacked(told)) as IWrittenCloseup);
}

/** Check and decode what stands in a recording's file: nbmem.api.render.save puts it there. */
export function opened(raw: unknown): IData {
  checkVersion(raw);
  return decoded(raw as IData);
}

async function unpacked(output: unknown): Promise<unknown> {
  checkVersion(output);
  return parsed((output as { data?: unknown }).data);
}

function checkVersion(written: unknown): void {
  const { version } = (written ?? {}) as { version?: unknown };
  if (typeof version !== 'number' || version < OLDEST || version > VERSION) {
    throw new DataError(
      `This report is of version ${String(version).slice(0, 20)} and this nbmem reads ${VERSION}: ` +
        'bring the kernel and JupyterLab to the same nbmem.'
    );
  }
}

async function joined(data: unknown, times: unknown): Promise<unknown> {
  const told = await parsed(times);
  return readable(() => together(data, told));
}

async function parsed(packed: unknown): Promise<unknown> {
  return readable(async () => JSON.parse(await inflated(String(packed))));
}

async function readable(read: () => unknown): Promise<unknown> {
  try {
    return await read();
  } catch (error) {
    throw new DataError(`This report cannot be read: ${String(error).slice(0, 200)}`);
  }
}

async function inflated(base64: string): Promise<string> {
  const bytes = Uint8Array.from(atob(base64), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  const reader = stream.getReader();
  const parts: BlobPart[] = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) {
      return new Blob(parts).text();
    }
    size += value.length;
    if (size > MOST_BYTES) {
      await reader.cancel();
      throw new RangeError(`more than ${MOST_BYTES} bytes`);
    }
    parts.push(value);
  }
}

interface IWritten {
  event: number[];
  t: number[];
  held: [number, number[]][];
  live?: [number, number[]][];
  line?: number[];
  parts?: number[][];
}

interface IWrittenCloseup {
  moments: IWritten;
  lives: ILives;
  pool: IWrittenPool;
  pool_event: number;
  texts: string[];
}

/** Differences become values, and what an older nbmem left out becomes empty. */
export function decoded(raw: IData): IData {
  const known = new Map(raw.categories.map(one => [one.key, one]));
  const categories = CATEGORIES.map(one => known.get(one.key) ?? one);
  const places = raw.categories.map(({ key }) => categories.findIndex(one => one.key === key));
  const moments = momentsOf(raw.total, places, raw.moments as unknown as IWritten);
  const { pool } = raw as unknown as { pool?: IWrittenPool };
  return {
    ...raw,
    categories,
    cells: raw.cells ?? [],
    parts: raw.parts ?? [],
    pools: pool === undefined ? [] : [mapOf(pool, [...moments.event])],
    lives: livesOf(raw.lives ?? EMPTY),
    lines: raw.lines ?? null,
    growth: growthOf(raw.growth, places),
    figures: FIGURES as [string, string][],
    moments
  };
}

export function decodedCloseup(data: IData, raw: IWrittenCloseup): ICloseup {
  return {
    moments: momentsOf(data.total, [...data.categories.keys()], raw.moments),
    lives: livesOf(raw.lives),
    pool: mapOf(raw.pool, [raw.pool_event]),
    texts: raw.texts
  };
}

/** `places` are those of the written categories among ours: an older nbmem had fewer. */
function momentsOf(total: number, places: readonly number[], written: IWritten): IMoments {
  const count = written.event.length;
  const columns = (found: [number, number[]][]): number[][] => {
    const all = CATEGORIES.map(() => new Array<number>(count).fill(0));
    found.forEach(([category, column]) => (all[places[category]] = summed(column)));
    return all;
  };
  const held = columns(written.held);
  held[FREE] = held[FREE].map((_, row) => total - held.reduce((sum, one) => sum + one[row], 0));
  return {
    event: summed(written.event),
    t: summed(written.t),
    held,
    live: written.live === undefined ? [] : columns(written.live),
    line: written.line ?? new Array<number>(count).fill(-1),
    parts: (written.parts ?? []).map(summed)
  };
}

/** `places` as above; nothing where a step has no figures. */
function growthOf(growth: IGrowth | undefined | null, places: readonly number[]): IGrowth | null {
  const holders = growth?.holders.map(one => ({ ...one, category: places[one.category] })) ?? [];
  return growth && growth.steps.length > 0 && holders.length > 0 ? { ...growth, holders } : null;
}

function livesOf(lives: ILives): ILives {
  const number = lives.number === undefined ? lives.born.map((_, i) => i) : summed(lives.number);
  const none = lives.born.map(() => [] as number[]);
  return {
    ...lives,
    number,
    born: summed(lives.born),
    stack: lives.stack ?? none,
    holders: lives.holders ?? none
  };
}

const EMPTY: ILives = {
  number: [],
  born: [],
  freed: [],
  category: [],
  requested: [],
  block: [],
  name: [],
  group: [],
  shape: [],
  dtype: [],
  born_in: [],
  line: [],
  stack: [],
  holders: []
};

/** Add what a kernel has told to what is known: the data get finer where a person looks. */
export function learn(data: IData, told: ICloseup): void {
  const known = new Map(data.texts.map((text, index) => [text, index]));
  const textOf = (index: number): number => {
    const text = told.texts[index];
    if (text === undefined) {
      return -1;
    }
    if (!known.has(text)) {
      known.set(text, data.texts.push(text) - 1);
    }
    return known.get(text) as number;
  };
  const { moments, lives } = data;
  told.moments.event.forEach((event, row) => {
    const after = moments.event.findIndex(other => other >= event);
    const at = after < 0 ? moments.event.length : after;
    if (moments.event[at] !== event) {
      moments.event.splice(at, 0, event);
      moments.t.splice(at, 0, told.moments.t[row]);
      moments.held.forEach((column, i) => column.splice(at, 0, told.moments.held[i][row]));
      moments.live.forEach((column, i) => column.splice(at, 0, told.moments.live[i][row]));
      moments.line.splice(at, 0, textOf(told.moments.line[row]));
      moments.parts.forEach((column, i) =>
        column.splice(at, 0, told.moments.parts[i]?.[row] ?? -1)
      );
    }
  });
  const met = new Set(lives.number);
  told.lives.number.forEach((number, row) => {
    if (!met.has(number)) {
      for (const column of NUMBERS) {
        lives[column].push(told.lives[column][row]);
      }
      for (const column of TEXTS) {
        lives[column].push(textOf(told.lives[column][row]));
      }
      for (const column of LISTS) {
        lives[column].push(told.lives[column][row].map(textOf));
      }
    }
  });
  data.pools.push(told.pool);
}

/** The columns of the lives by what stands in them. */
const NUMBERS = ['number', 'born', 'freed', 'category', 'requested', 'block'] as const;
const TEXTS = ['name', 'group', 'shape', 'dtype', 'born_in', 'line'] as const;
const LISTS = ['stack', 'holders'] as const;

function summed(column: number[]): number[] {
  let sum = 0;
  return column.map(step => (sum += step));
}

/** A text by its index; empty for -1. */
export function textOf({ texts }: Pick<IData, 'texts'>, index: number): string {
  return texts[index] ?? '';
}
