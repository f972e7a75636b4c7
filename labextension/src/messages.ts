// Written by tools/messages.py from nbmem/live; do not edit. What each message means stands there.

export const VERSION = 1;
export const TARGET = 'nbmem';
export const RPC_TARGET = 'nbmem.rpc';
export const LEAST_HZ = 2;
export const USUAL_HZ = 4;
export const MOST_HZ = 10;

/** A cell of the notebook. */
export interface ICell {
  /** The 3 of `In [3]`; null for a cell that IPython does not count. */
  number: number | null;
  /** JupyterLab's id of the cell; null where the front end does not send it. */
  cell_id: string | null;
  /** Its first line of code, or the name that the user gave. */
  label: string;
  /** Whether it is recorded fully (`%%memtrace`). */
  traced: boolean;
  /** When it began, milliseconds since the epoch. */
  begun_ms: number;
}

/** A sample of one card, in bytes. */
export interface ICardSample {
  /** CUDA ordinal. */
  index: number;
  /** The driver's name for it; null if the driver does not report one. */
  name: string | null;
  /** Whether it is one of nbmem's virtual cards. */
  virtual: boolean;
  /** The whole card; the host's memory if the card shares that. */
  total: number | null;
  /** Bytes in live blocks, rounded up as the allocator does. */
  allocated: number;
  /** Bytes held from the driver. */
  reserved: number;
  /** Bytes that the driver counts for this process. */
  process: number | null;
  /** Unused bytes. */
  free: number | null;
  /** Bytes that the driver reserves for itself; 0 if it does not report them. */
  driver: number;
  /** Highest `allocated` since the cell began. */
  peak: number;
  /** Whether it was counted; else it is the highest sample, and more is possible. */
  peak_exact: boolean;
  /**
   * `allocated` by category, in the order to stack them. They add up to it exactly; the last one is
   * the rest. Empty if nothing is known: in a cell without a trace, and before a loop's first
   * forward has ended.
   */
  by_category: [string, string, number][];
  /**
   * Bytes that other frameworks of this process report, by category: a part of what `process` has
   * beyond `reserved`. The labels are their names. Empty if there are none.
   */
  frameworks: [string, string, number][];
  /** Whether the card uses the host's memory and has none of its own. */
  shared: boolean;
}

/** A sample of the host's memory, in bytes, where torch has no card. */
export interface IHostSample {
  /** The machine's, or the limit of its container. */
  total: number;
  /** Resident bytes of this process: what `top` shows. */
  process: number;
  /** Highest `process` since the cell began. */
  peak: number;
  /** As for CardSample: whether the kernel counted it. */
  peak_exact: boolean;
  /** Available bytes: page cache that the kernel would release is free. */
  free: number | null;
  /**
   * `process` by the categories of a trace, in the order to stack them. They add up to it exactly;
   * the last one is the rest. Empty if nothing is known.
   */
  by_category: [string, string, number][];
  /**
   * Its parts, across the categories, by key of an Entry. Empty if the kernel does not report them.
   */
  parts: [string, string, number][];
}

/**
 * Samples of the cards while a cell runs, or of the host. The host is sampled if there is no card.
 * Pushed when a figure has changed.
 */
export interface ISample {
  nbmem: typeof VERSION;
  kind: 'sample';
  /** Time of the reading, milliseconds since the epoch. */
  t_ms: number;
  /** The cell that runs. */
  cell: ICell;
  /** Current phase of a traced training loop (`forward`); null elsewhere. */
  phase: string | null;
  /** Its step, from 0. */
  step: number | null;
  /** Each card that torch uses. */
  cards: ICardSample[];
  /** The host's memory; null if torch could use a card. */
  host: IHostSample | null;
}

/** A cell has begun, and runs long enough to be worth a message. */
export interface ICellBegun {
  nbmem: typeof VERSION;
  kind: 'cell_begun';
  t_ms: number;
  cell: ICell;
}

/**
 * Highest allocated bytes on one card while a cell ran. It is determined once, at the cell's end:
 * by a traced cell's report, else by torch's counter. Every view takes it from the cell's CellDelta
 * and writes it with `core.units.format_peak`.
 */
export interface ICellPeak {
  /** The card's CUDA ordinal. */
  device: number;
  /** Bytes. */
  allocated: number;
  /** Whether it was counted; else it was read now and then, and more is possible. */
  exact: boolean;
}

/** Memory change of one cell on one card, from counters around it. */
export interface ICellDelta {
  /** The cell's name: its first line, or the name that the user gave. */
  label: string;
  /** The number in `In [n]`; null for a cell without one. */
  execution_count: number | null;
  /** Bytes in live blocks when it started. */
  allocated_before: number;
  /** Bytes in live blocks when it ended. */
  allocated_after: number;
  /** Bytes held from the driver when it started. */
  reserved_before: number;
  /** Bytes held from the driver when it ended. */
  reserved_after: number;
  /**
   * Its highest allocated bytes: of the card that `%%memtrace` reports, else of the card with the
   * most. null if not read.
   */
  peak: ICellPeak | null;
  /** Bytes that the driver counts for this process afterwards; null if not reported. */
  process: number | null;
  /** How long it ran. */
  duration_ns: number;
  /** The exception that ended it (`OutOfMemoryError`), or null. */
  error: string | null;
}

/** A cell has ended. Pushed if samples of it were, or would be. */
export interface ICellEnded {
  nbmem: typeof VERSION;
  kind: 'cell_ended';
  /** Time of its end. */
  t_ms: number;
  /** The cell that ended. */
  cell: ICell;
  /** Memory that it took and left, with its peak; null if it has no line in the history. */
  delta: ICellDelta | null;
}

/** A card that torch could use here. */
export interface ICardInfo {
  /** CUDA ordinal; NVML's index if torch is not started. */
  index: number;
  /** The driver's name. */
  name: string;
  /** Bytes; the host's memory if the card shares it. */
  total: number | null;
  /** Whether it is one of nbmem's virtual cards. */
  virtual: boolean;
  /** Whether it uses the host's memory and has none of its own. */
  shared: boolean;
}

/** A position in a recording, described for a person. */
export interface IMoment {
  /** Index of the next event. */
  event: number;
  /** Nanoseconds since the start of the recording. */
  t_ns: number;
  phase: string | null;
  step: number | null;
  /** `file.py:12 in function` of the allocation that made the peak, if a stack was taken. */
  line: string | null;
}

/**
 * The highest figures of a recording, each with its own moment. A figure is null if it is not
 * known.
 */
export interface IPeak {
  /** Where `allocated` was highest; the ledger at the peak is of this moment. */
  at: IMoment;
  allocated: number;
  reserved: number;
  active: number;
  requested: number;
  /** Highest process figure: reserved peak plus context; null without NVML. */
  process: number | null;
  reserved_at: IMoment | null;
  process_at: IMoment | null;
}

/** A phase of the last trace. */
export interface IPhase {
  /** `forward`, or the user's own name for a block. */
  name: string;
  /** From 0; null outside of a step. */
  step: number | null;
  /** 1 for a phase inside another. */
  depth: number;
  /** Its duration. */
  duration_ms: number;
  /** Allocated bytes at its start. */
  before: number;
  /** Highest allocated bytes inside. */
  peak: number;
  /** Allocated bytes at its end. */
  after: number;
}

/** An action of nbmem, chosen from a fixed list. It is never built as code from strings. */
export interface ICommand {
  /** The subcommand of `%nbmem` ("free"). */
  name: string;
  /** Its arguments ("cache",). */
  arguments: string[];
}

/** One piece of advice, with what this run showed for it. */
export interface IFinding {
  /** Key of the rule that found it (`checkpoint_kept`). */
  rule: string;
  /** One sentence: what to do and what it saves. */
  title: string;
  /** What this recording showed, in one or two sentences with figures. */
  evidence: string;
  /** Bytes that it saves at least. */
  low: number;
  /** Bytes that it saves at most; equal to `low` if the saving is known. */
  high: number;
  /** How the bytes are known: counted, simulated on the recorded events, estimated. */
  ground: 'exact' | 'simulated' | 'estimated';
  /** Code to paste, or null. */
  code: string | null;
  /** The nbmem command that does it, or null if only the user can. */
  command: ICommand | null;
  /** Bytes that it saved when it was applied, or null. */
  measured: number | null;
}

/** The report of the last trace. Pushed at the traced cell's end. */
export interface ILastReport {
  nbmem: typeof VERSION;
  kind: 'last_report';
  /** Time at which it was finished. */
  t_ms: number;
  /** The traced cell; null for an opened file. */
  cell: ICell | null;
  /** Its label. */
  title: string;
  /** Its first sentence: one number and a judgement. */
  verdict: string;
  /** The card. */
  device: ICardInfo;
  /** Duration of the recording. */
  duration_ms: number;
  /** The highest figures, and their moments. */
  peak: IPeak;
  /** The whole card at the peak, by category; adds up to the card. */
  at_peak: [string, string, number][];
  /** The whole card at the end, by category. */
  at_end: [string, string, number][];
  /** Parts of the host's memory at the peak, as in HostSample; empty for a card. */
  parts_at_peak: [string, string, number][];
  /** In order of their start, the first MOST_PHASES. */
  phases: IPhase[];
  /** How many more there were. */
  phases_left_out: number;
  /** Advice, the largest saving first. */
  findings: IFinding[];
  /** Rules whose first finding `%nbmem try` can apply to the cell. */
  tries: string[];
  /** One sentence each. */
  notes: string[];
  /** The exception that ended it. */
  error: string | null;
}

/** Another process on a card. */
export interface IProcess {
  /** CUDA ordinal. */
  card: number;
  /** Its number, as the driver sees it. */
  pid: number;
  /** The program's name; null if that is hidden. */
  name: string | null;
  /** The notebook whose kernel it is (`train.ipynb`); null for other programs. */
  notebook: string | null;
  /** Its bytes. */
  used: number;
}

/** The other processes on the cards, by bytes. Pushed on change. */
export interface IProcesses {
  nbmem: typeof VERSION;
  kind: 'processes';
  t_ms: number;
  processes: IProcess[];
}

/** A rank's last line, at most a second old. Figures are null if it has not written any. */
export interface IRankNow {
  /** Its rank in the world. */
  number: number;
  /** Its machine. */
  host: string;
  /**
   * `running`; `silent` if it is alive and has written nothing for ten seconds; `lost` if its
   * process ended without a record; `finished` or `failed`; `ended` if its session has not been
   * read yet.
   */
  state: 'running' | 'silent' | 'lost' | 'ended' | 'finished' | 'failed';
  /** Current phase of its training loop (`forward`). */
  phase: string | null;
  /** Its step, from 0. */
  step: number | null;
  /** Its card's name. */
  card: string | null;
  /** Bytes of that card. */
  total: number | null;
  /** Bytes in live blocks. */
  allocated: number | null;
  /** Bytes held from the driver. */
  reserved: number | null;
  /** Highest `allocated` since it began. */
  peak: number | null;
  /**
   * `allocated` by category: key, label, bytes. They add up to it; the last one is the rest. Empty
   * if nothing is known.
   */
  by_category: [string, string, number][];
  /** Location of its main thread: `in all_reduce, called at train.py:41`; null if unknown. */
  at: string | null;
  /** The exception that ended it. */
  error: string | null;
}

/** The ranks that a cell has started, by number. Pushed on change. */
export interface IRanksNow {
  nbmem: typeof VERSION;
  kind: 'ranks_now';
  /** Time of the reading, milliseconds since the epoch. */
  t_ms: number;
  /** The folder that they write into. */
  folder: string;
  /** World size, as the ranks report it. */
  size: number;
  /** Ranks that have written, MOST_RANKS at most. */
  ranks: IRankNow[];
  /** Number of further ranks that have written. */
  left_out: number;
}

/** A sentence to show once (`the live readings stopped: ...`). */
export interface INote {
  nbmem: typeof VERSION;
  kind: 'note';
  t_ms: number;
  sentence: string;
}

/** nbmem is loaded in this kernel: a page may ask for the State. */
export interface ILoaded {
  nbmem: typeof VERSION;
  kind: 'loaded';
  /** When. */
  t_ms: number;
  /** nbmem's version. */
  package: string;
}

/** nbmem is being unloaded from this kernel; the last message. */
export interface IUnloaded {
  nbmem: typeof VERSION;
  kind: 'unloaded';
  t_ms: number;
}

/**
 * A request for the State; answered while a cell runs, too. This requires a kernel with subshells.
 */
export interface IGetState {
  nbmem: typeof VERSION;
  kind: 'get_state';
  id: string;
}

/**
 * A request to activate a virtual card. `card` is a CardChoice's key; `off` deactivates it. Refused
 * while a cell runs.
 */
export interface IChooseCard {
  nbmem: typeof VERSION;
  kind: 'choose_card';
  id: string;
  card: string;
}

/**
 * A request to run and measure a command of a finding. The finding is from the last report. Refused
 * while a cell runs.
 */
export interface IRunCommand {
  nbmem: typeof VERSION;
  kind: 'run_command';
  /** The request's. */
  id: string;
  /** The command's name (`free`). */
  name: string;
  /** Its arguments. Name and arguments must be those of a finding, or `free cache`. */
  arguments: string[];
}

/** A request to mute or unmute a rule's findings. */
export interface IMuteRule {
  nbmem: typeof VERSION;
  kind: 'mute_rule';
  id: string;
  rule: string;
  muted: boolean;
}

/** A request for a number of samples a second. From LEAST_HZ to MOST_HZ. */
export interface ISetRate {
  nbmem: typeof VERSION;
  kind: 'set_rate';
  id: string;
  hz: number;
}

/**
 * A request to trace the next cell, or to cancel that. The cell is traced as if `%%memtrace` stood
 * above it.
 */
export interface ITraceNext {
  nbmem: typeof VERSION;
  kind: 'trace_next';
  id: string;
  on: boolean;
}

/**
 * A request to start the process of estimates in advance. Sent while the user types `%%nbmem`: the
 * process takes seconds to be ready.
 */
export interface IExpectQuestion {
  nbmem: typeof VERSION;
  kind: 'expect_question';
  id: string;
}

/** A virtual card that ChooseCard accepts. */
export interface ICardChoice {
  /** Its short name (`H100 80GB`). */
  key: string;
  /** Its full name. */
  name: string;
  /** Bytes. */
  total: number;
}

/** The full state for a page that has just connected. It is the reply to GetState. */
export interface IState {
  nbmem: typeof VERSION;
  kind: 'state';
  /** The request's. */
  id: string;
  /** When. */
  t_ms: number;
  /** nbmem's version in the kernel. */
  package: string;
  /** torch's version; null if the notebook has not imported it. */
  torch: string | null;
  /** The cards here; empty without a GPU. */
  cards: ICardInfo[];
  /** The virtual cards, if one can be activated now; else empty. */
  choices: ICardChoice[];
  /** Maximum samples a second. */
  rate_hz: number;
  /** Whether the next cell will be traced at the page's request. */
  tracing_next: boolean;
  /** The cell that runs. */
  cell: ICell | null;
  /** Samples of the last minute, oldest first. */
  samples: ISample[];
  /** The last MOST_CELLS cells, oldest first. */
  cells: ICellEnded[];
  /** Report of the last trace. */
  report: ILastReport | null;
  /** Other processes on the cards. */
  processes: IProcess[];
  /** Latest data of a cell's ranks; null if none has started any. */
  ranks: IRanksNow | null;
  /** Rules whose advice is not shown. */
  muted: string[];
  /** Faults of nbmem itself, one sentence each. */
  notes: string[];
}

/** A request was carried out; `sentence` says what it did. */
export interface IDone {
  nbmem: typeof VERSION;
  kind: 'done';
  id: string;
  sentence: string;
}

/** A request was refused; `sentence` gives the reason. `id` is empty if it could not be read. */
export interface IRefused {
  nbmem: typeof VERSION;
  kind: 'refused';
  id: string;
  sentence: string;
}

export type Push =
  | ISample
  | ICellBegun
  | ICellEnded
  | ILastReport
  | IProcesses
  | IRanksNow
  | INote
  | ILoaded
  | IUnloaded;
export type Request =
  IGetState | IChooseCard | IRunCommand | IMuteRule | ISetRate | ITraceNext | IExpectQuestion;
export type Reply = IState | IDone | IRefused;

/** A value's check; what it lets pass has the declared form. */
type Check = (value: unknown) => boolean;

const MOST_ITEMS = 10_000;
const MOST_TEXT = 100_000;

const text: Check = v => typeof v === 'string' && v.length <= MOST_TEXT;
const truth: Check = v => typeof v === 'boolean';
const number: Check = v => typeof v === 'number' && Number.isFinite(v);
const integer: Check = v => Number.isSafeInteger(v);
const oneOf =
  (...values: string[]): Check =>
  v =>
    typeof v === 'string' && values.includes(v);
const nullable =
  (check: Check): Check =>
  v =>
    v === null || check(v);
const list =
  (check: Check): Check =>
  v =>
    Array.isArray(v) && v.length <= MOST_ITEMS && v.every(item => check(item));
const tuple =
  (...checks: Check[]): Check =>
  v =>
    Array.isArray(v) && v.length === checks.length && checks.every((check, i) => check(v[i]));
const record =
  (fields: [string, Check][]): Check =>
  v =>
    typeof v === 'object' &&
    v !== null &&
    fields.every(
      ([name, check]) =>
        Object.prototype.hasOwnProperty.call(v, name) && check((v as Record<string, unknown>)[name])
    );

const isCell = record([
  ['number', nullable(integer)],
  ['cell_id', nullable(text)],
  ['label', text],
  ['traced', truth],
  ['begun_ms', number]
]);

const isCardSample = record([
  ['index', integer],
  ['name', nullable(text)],
  ['virtual', truth],
  ['total', nullable(integer)],
  ['allocated', integer],
  ['reserved', integer],
  ['process', nullable(integer)],
  ['free', nullable(integer)],
  ['driver', integer],
  ['peak', integer],
  ['peak_exact', truth],
  ['by_category', list(tuple(text, text, integer))],
  ['frameworks', list(tuple(text, text, integer))],
  ['shared', truth]
]);

const isHostSample = record([
  ['total', integer],
  ['process', integer],
  ['peak', integer],
  ['peak_exact', truth],
  ['free', nullable(integer)],
  ['by_category', list(tuple(text, text, integer))],
  ['parts', list(tuple(text, text, integer))]
]);

const isSample = record([
  ['t_ms', number],
  ['cell', isCell],
  ['phase', nullable(text)],
  ['step', nullable(integer)],
  ['cards', list(isCardSample)],
  ['host', nullable(isHostSample)]
]);

const isCellBegun = record([
  ['t_ms', number],
  ['cell', isCell]
]);

const isCellPeak = record([
  ['device', integer],
  ['allocated', integer],
  ['exact', truth]
]);

const isCellDelta = record([
  ['label', text],
  ['execution_count', nullable(integer)],
  ['allocated_before', integer],
  ['allocated_after', integer],
  ['reserved_before', integer],
  ['reserved_after', integer],
  ['peak', nullable(isCellPeak)],
  ['process', nullable(integer)],
  ['duration_ns', integer],
  ['error', nullable(text)]
]);

const isCellEnded = record([
  ['t_ms', number],
  ['cell', isCell],
  ['delta', nullable(isCellDelta)]
]);

const isCardInfo = record([
  ['index', integer],
  ['name', text],
  ['total', nullable(integer)],
  ['virtual', truth],
  ['shared', truth]
]);

const isMoment = record([
  ['event', integer],
  ['t_ns', integer],
  ['phase', nullable(text)],
  ['step', nullable(integer)],
  ['line', nullable(text)]
]);

const isPeak = record([
  ['at', isMoment],
  ['allocated', integer],
  ['reserved', integer],
  ['active', integer],
  ['requested', integer],
  ['process', nullable(integer)],
  ['reserved_at', nullable(isMoment)],
  ['process_at', nullable(isMoment)]
]);

const isPhase = record([
  ['name', text],
  ['step', nullable(integer)],
  ['depth', integer],
  ['duration_ms', number],
  ['before', integer],
  ['peak', integer],
  ['after', integer]
]);

const isCommand = record([
  ['name', text],
  ['arguments', list(text)]
]);

const isFinding = record([
  ['rule', text],
  ['title', text],
  ['evidence', text],
  ['low', integer],
  ['high', integer],
  ['ground', oneOf('exact', 'simulated', 'estimated')],
  ['code', nullable(text)],
  ['command', nullable(isCommand)],
  ['measured', nullable(integer)]
]);

const isLastReport = record([
  ['t_ms', number],
  ['cell', nullable(isCell)],
  ['title', text],
  ['verdict', text],
  ['device', isCardInfo],
  ['duration_ms', number],
  ['peak', isPeak],
  ['at_peak', list(tuple(text, text, integer))],
  ['at_end', list(tuple(text, text, integer))],
  ['parts_at_peak', list(tuple(text, text, integer))],
  ['phases', list(isPhase)],
  ['phases_left_out', integer],
  ['findings', list(isFinding)],
  ['tries', list(text)],
  ['notes', list(text)],
  ['error', nullable(text)]
]);

const isProcess = record([
  ['card', integer],
  ['pid', integer],
  ['name', nullable(text)],
  ['notebook', nullable(text)],
  ['used', integer]
]);

const isProcesses = record([
  ['t_ms', number],
  ['processes', list(isProcess)]
]);

const isRankNow = record([
  ['number', integer],
  ['host', text],
  ['state', oneOf('running', 'silent', 'lost', 'ended', 'finished', 'failed')],
  ['phase', nullable(text)],
  ['step', nullable(integer)],
  ['card', nullable(text)],
  ['total', nullable(integer)],
  ['allocated', nullable(integer)],
  ['reserved', nullable(integer)],
  ['peak', nullable(integer)],
  ['by_category', list(tuple(text, text, integer))],
  ['at', nullable(text)],
  ['error', nullable(text)]
]);

const isRanksNow = record([
  ['t_ms', number],
  ['folder', text],
  ['size', integer],
  ['ranks', list(isRankNow)],
  ['left_out', integer]
]);

const isNote = record([
  ['t_ms', number],
  ['sentence', text]
]);

const isLoaded = record([
  ['t_ms', number],
  ['package', text]
]);

const isUnloaded = record([['t_ms', number]]);

const isCardChoice = record([
  ['key', text],
  ['name', text],
  ['total', integer]
]);

const isState = record([
  ['id', text],
  ['t_ms', number],
  ['package', text],
  ['torch', nullable(text)],
  ['cards', list(isCardInfo)],
  ['choices', list(isCardChoice)],
  ['rate_hz', number],
  ['tracing_next', truth],
  ['cell', nullable(isCell)],
  ['samples', list(isSample)],
  ['cells', list(isCellEnded)],
  ['report', nullable(isLastReport)],
  ['processes', list(isProcess)],
  ['ranks', nullable(isRanksNow)],
  ['muted', list(text)],
  ['notes', list(text)]
]);

const isDone = record([
  ['id', text],
  ['sentence', text]
]);

const isRefused = record([
  ['id', text],
  ['sentence', text]
]);

const PUSHES = new Map<string, Check>([
  ['sample', isSample],
  ['cell_begun', isCellBegun],
  ['cell_ended', isCellEnded],
  ['last_report', isLastReport],
  ['processes', isProcesses],
  ['ranks_now', isRanksNow],
  ['note', isNote],
  ['loaded', isLoaded],
  ['unloaded', isUnloaded]
]);

const REPLIES = new Map<string, Check>([
  ['state', isState],
  ['done', isDone],
  ['refused', isRefused]
]);

/** What became of a message: `foreign` is none of ours, `version` of another nbmem. */
export type Read<T> =
  | { ok: true; message: T }
  | { ok: false; why: 'foreign' | 'invalid' }
  | { ok: false; why: 'version'; version: number };

function read<T>(data: unknown, kinds: Map<string, Check>): Read<T> {
  if (typeof data !== 'object' || data === null || !('nbmem' in data)) {
    return { ok: false, why: 'foreign' };
  }
  const { nbmem, kind } = data as { nbmem: unknown; kind?: unknown };
  if (typeof nbmem !== 'number') {
    return { ok: false, why: 'invalid' };
  }
  if (nbmem !== VERSION) {
    return { ok: false, why: 'version', version: nbmem };
  }
  const check = typeof kind === 'string' ? kinds.get(kind) : undefined;
  return check?.(data) ? { ok: true, message: data as T } : { ok: false, why: 'invalid' };
}

/** Read the data of a `comm_msg` on iopub. */
export function readPush(data: unknown): Read<Push> {
  return read<Push>(data, PUSHES);
}

/** Read an answer on the request comm. */
export function readReply(data: unknown): Read<Reply> {
  return read<Reply>(data, REPLIES);
}
