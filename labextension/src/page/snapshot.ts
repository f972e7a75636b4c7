/** Torch's memory snapshot, checked: what each card's allocator did, and how it lay at the end. */

import { isDict, type IPlainDict, type Plain } from './pickle.js';
import { FileError } from './refused.js';

/** Torch's names, in the order of nbmem.core.session.events.Action. */
const ACTIONS = [
  'alloc',
  'free_requested',
  'free_completed',
  'segment_alloc',
  'segment_free',
  'segment_map',
  'segment_unmap',
  'oom',
  'snapshot'
];
export const [ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP] = [
  0, 1, 2, 3, 4, 5
];
export const SEGMENT_UNMAP = 6;
export const OOM = 7;

/** States of a block. */
export const [INACTIVE, ALLOCATED, AWAITED] = [0, 1, 2];
const STATES = new Map([
  ['inactive', INACTIVE],
  ['active_allocated', ALLOCATED],
  ['active_pending_free', AWAITED],
  ['active_awaiting_free', AWAITED]
]);

const MOST_CARDS = 64;
/** Events, and segments and blocks, of all cards together. */
const MOST_ROWS = 10_000_000;
/** Frames of one stack. */
const MOST_FRAMES = 10_000;
const MIB = 2 ** 20;

export interface ISegmentRow {
  addr: number;
  size: number;
  stream: number;
  small: boolean;
  expandable: boolean;
  pool: number;
}

export interface IBlockRow {
  addr: number;
  size: number;
  requested: number;
  state: number;
  stack: number;
}

/** What decides how large blocks are: see nbmem/allocator/settings.py. */
export interface ISettings {
  maxSplit: number;
  expandable: boolean;
  largeSegment: number;
  /** Sixteen entries; 0 and 1 mean plain rounding. */
  divisions: number[];
}

export interface ICard {
  index: number;
  action: Uint8Array;
  addr: Float64Array;
  size: Float64Array;
  stream: Float64Array;
  /** Microseconds. */
  t: Float64Array;
  stack: Int32Array;
  segments: ISegmentRow[];
  blocks: IBlockRow[];
  settings: ISettings;
  /** Entries of a kind that is not known here. */
  skipped: number;
}

export interface IFrame {
  file: string;
  line: number;
  name: string;
}

export interface ISnapshot {
  cards: ICard[];
  stacks: Stacks;
}

/** The cards of a snapshot that have anything in them. Throws a FileError. */
export function snapshotOf(raw: Plain): ISnapshot {
  if (!isDict(raw) || !('segments' in raw) || !('device_traces' in raw)) {
    throw new FileError("it is a pickle, but no snapshot of torch's memory");
  }
  const traces = lists(raw['device_traces'], 'device_traces');
  if (traces.length > MOST_CARDS) {
    throw new FileError(`it has ${traces.length} cards`);
  }
  const rows = { left: MOST_ROWS };
  const stacks = new Stacks();
  const segments = dicts(raw['segments'], 'segments', rows);
  const settings = settingsOf(raw['allocator_settings']);
  const cards = traces.map((trace, index) => {
    const mine = segments.filter(segment => (segment['device'] ?? 0) === index);
    return cardOf(index, dicts(trace, 'device_traces', rows), mine, settings, stacks, rows);
  });
  return { cards: cards.filter(card => card.action.length + card.segments.length > 0), stacks };
}

interface IRows {
  left: number;
}

function cardOf(
  index: number,
  trace: IPlainDict[],
  segments: IPlainDict[],
  settings: ISettings,
  stacks: Stacks,
  rows: IRows
): ICard {
  const codes = trace.map(entry => ACTIONS.indexOf(text(entry['action'])));
  const known = trace.filter((_, i) => codes[i] >= 0);
  const column = (name: string, otherwise: number | null): Float64Array =>
    Float64Array.from(known, entry => whole(entry[name] ?? otherwise, name));
  return {
    index,
    action: Uint8Array.from(codes.filter(code => code >= 0)),
    addr: column('addr', 0),
    size: column('size', null),
    stream: column('stream', 0),
    t: column('time_us', 0),
    stack: Int32Array.from(known, entry => stacks.indexOf(entry['frames'])),
    ...layoutOf(segments, stacks, rows),
    settings,
    skipped: trace.length - known.length
  };
}

function layoutOf(
  raw: IPlainDict[],
  stacks: Stacks,
  rows: IRows
): { segments: ISegmentRow[]; blocks: IBlockRow[] } {
  const segments: ISegmentRow[] = [];
  const blocks: IBlockRow[] = [];
  for (const segment of raw) {
    let addr = whole(segment['address'], 'address');
    segments.push({
      addr,
      size: whole(segment['total_size'], 'total_size'),
      stream: whole(segment['stream'] ?? 0, 'stream'),
      small: segment['segment_type'] === 'small',
      expandable: Boolean(segment['is_expandable']),
      pool: poolOf(segment['segment_pool_id'])
    });
    for (const block of dicts(segment['blocks'], 'blocks', rows)) {
      addr = whole(block['address'] ?? addr, 'address'); // torch before 2.0 wrote none
      const size = whole(block['size'], 'size');
      const state = STATES.get(text(block['state']));
      if (state === undefined) {
        throw new FileError('one of its blocks has a state that torch does not know');
      }
      const requested = whole(block['requested_size'] ?? size, 'requested_size');
      blocks.push({ addr, size, requested, state, stack: stacks.indexOf(block['frames']) });
      addr += size;
    }
  }
  segments.sort((a, b) => a.addr - b.addr);
  blocks.sort((a, b) => a.addr - b.addr);
  return { segments, blocks };
}

/** One number for torch's pair: see pool_number in nbmem/core/files/torch_snapshot.py. */
function poolOf(pair: Plain | undefined): number {
  if (!Array.isArray(pair)) {
    return 0;
  }
  return whole(pair[1] ?? 0, 'segment_pool_id') || -whole(pair[0] ?? 0, 'segment_pool_id');
}

function settingsOf(raw: Plain | undefined): ISettings {
  const told = isDict(raw) ? raw : {};
  const conf = text(told['PYTORCH_CUDA_ALLOC_CONF']);
  const mib = (key: string): number | undefined => {
    const found = new RegExp(`${key}\\s*:\\s*(\\d{1,9})`).exec(conf);
    return found === null ? undefined : Number(found[1]) * MIB;
  };
  const limit = told['max_split_size'] ?? mib('max_split_size_mb') ?? -1;
  const divisions = told['roundup_power2_divisions'];
  return {
    maxSplit: typeof limit === 'number' && limit > 0 && limit < 2 ** 60 ? limit : Infinity,
    expandable: Boolean(told['expandable_segments'] ?? /expandable_segments\s*:\s*True/.test(conf)),
    largeSegment: mib('large_segment_size_mb') ?? 20 * MIB,
    divisions: Array.from({ length: 16 }, (_, i) => {
      const parts = isDict(divisions) ? divisions[String(2 ** i)] : 0;
      return typeof parts === 'number' ? parts : 0;
    })
  };
}

/** Python stacks, each once; C++ frames are left out, as nbmem/core/files/stacks.py does. */
export class Stacks {
  readonly frames: IFrame[] = [];
  /** By stack: indices of frames, the innermost first. */
  readonly all: number[][] = [];

  /** -1 for none. */
  indexOf(raw: Plain | undefined): number {
    if (!Array.isArray(raw) || raw.length === 0) {
      return -1;
    }
    let index = this._byList.get(raw);
    if (index === undefined) {
      index = this._index(raw);
      this._byList.set(raw, index);
    }
    return index;
  }

  private _index(raw: Plain[]): number {
    if (raw.length > MOST_FRAMES) {
      throw new FileError(`one of its stacks has ${raw.length.toLocaleString('en-US')} frames`);
    }
    const stack = raw.map(frame => this._frame(frame)).filter(frame => frame >= 0);
    if (stack.length === 0) {
      return -1;
    }
    const key = stack.join();
    const known = this._byFrames.get(key) ?? this.all.push(stack) - 1;
    this._byFrames.set(key, known);
    return known;
  }

  /** -1 for one of C++. */
  private _frame(raw: Plain): number {
    if (!isDict(raw)) {
      throw new FileError('one of its frames is none');
    }
    let index = this._byDict.get(raw);
    if (index === undefined) {
      const [file, name, line] = [raw['filename'], raw['name'], raw['line']];
      if (typeof file !== 'string' || typeof name !== 'string' || typeof line !== 'number') {
        throw new FileError('one of its frames has no filename, line and name');
      }
      const native = line === 0 || file === '' || file === '??' || NATIVE.test(file);
      const key = `${line} ${name} ${file}`;
      index = native ? -1 : (this._byPlace.get(key) ?? this.frames.push({ file, line, name }) - 1);
      this._byPlace.set(key, index);
      this._byDict.set(raw, index);
    }
    return index;
  }

  private readonly _byList = new Map<Plain[], number>();
  private readonly _byFrames = new Map<string, number>();
  private readonly _byDict = new Map<IPlainDict, number>();
  private readonly _byPlace = new Map<string, number>();
}

/** How the files of C++ frames end. */
const NATIVE = /\.(?:c|cc|cpp|cu|cuh|cxx|h|hpp|inl|o|rs|s|so|tcc)$/i;

function lists(value: Plain | undefined, name: string): Plain[][] {
  if (!Array.isArray(value) || !value.every(Array.isArray)) {
    throw new FileError(`its ${name} are no lists`);
  }
  return value as Plain[][];
}

function dicts(value: Plain | undefined, name: string, rows: IRows): IPlainDict[] {
  if (!Array.isArray(value)) {
    throw new FileError(`its ${name} are no list`);
  }
  rows.left -= value.length;
  if (rows.left < 0) {
    throw new FileError(`it has more than ${MOST_ROWS.toLocaleString('en-US')} events and blocks`);
  }
  if (!value.every(isDict)) {
    throw new FileError(`its ${name} are not as torch writes them`);
  }
  return value;
}

function whole(value: Plain | undefined, name: string): number {
  if (typeof value !== 'number' || !Number.isSafeInteger(value)) {
    throw new FileError(`its ${name} is no whole number`);
  }
  return value;
}

function text(value: Plain | undefined): string {
  return typeof value === 'string' ? value : '';
}
