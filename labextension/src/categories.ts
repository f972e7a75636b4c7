// Written by tools/categories.py from nbmem/core/session/categories.py and nbmem/report/exploration.py; do not edit.

export interface ICategory {
  key: string;
  label: string;
  meaning: string;
}

/** In the order in which every view stacks them. */
export const CATEGORIES: readonly ICategory[] = [
  { key: 'weights', label: 'weights', meaning: 'storages of registered parameters' },
  { key: 'buffers', label: 'buffers', meaning: 'storages of registered buffers' },
  { key: 'gradients', label: 'gradients', meaning: 'the .grad of parameters' },
  { key: 'optimizer_state', label: 'optimizer state', meaning: 'what optimizer.state holds' },
  { key: 'inputs', label: 'inputs', meaning: 'tensors given to the model, not made by a graph' },
  { key: 'activations', label: 'activations', meaning: 'forward results kept for backward' },
  {
    key: 'output_gradients',
    label: 'output gradients',
    meaning: 'gradients of activations, on their way through backward'
  },
  { key: 'temporaries', label: 'temporaries', meaning: 'born and dead inside one phase' },
  { key: 'workspace', label: 'workspace', meaning: 'scratch memory of cuBLAS, cuBLASLt and cuDNN' },
  {
    key: 'communication',
    label: 'communication',
    meaning: 'buckets and flat buffers of DDP, FSDP and ZeRO'
  },
  {
    key: 'user_tensors',
    label: 'user tensors',
    meaning: 'named from the notebook and none of the above'
  },
  { key: 'unknown', label: 'unknown', meaning: 'active bytes that nothing names' },
  {
    key: 'rounding',
    label: 'rounding',
    meaning: 'block bytes minus requested bytes of allocated blocks'
  },
  { key: 'pending', label: 'pending', meaning: 'freed, but another stream still uses it' },
  {
    key: 'cached_releasable',
    label: 'cached, releasable',
    meaning: 'free whole segments: what empty_cache() gives back'
  },
  {
    key: 'cached_stuck',
    label: 'cached, stuck',
    meaning: 'free pieces of segments in use, and what graphs keep for replay'
  },
  {
    key: 'frameworks',
    label: 'other frameworks',
    meaning: 'in use by CuPy, JAX, RMM and others in this process'
  },
  {
    key: 'frameworks_cached',
    label: 'other frameworks, cached',
    meaning: 'what their pools hold and do not use'
  },
  {
    key: 'context',
    label: 'context and libraries',
    meaning: 'CUDA context and libraries: the rest of the process'
  },
  {
    key: 'other_processes',
    label: 'other processes',
    meaning: "the card's used bytes minus this process"
  },
  {
    key: 'driver',
    label: 'kept by the driver',
    meaning: "NVML's reserved bytes, and those that it counts for no process"
  },
  { key: 'free', label: 'free', meaning: 'the rest of the card' }
];

/* How many categories, from the first, make each sum. */
/** Requested bytes of live blocks. */
export const LIVE = 12;
/** With rounding and pending. */
export const ACTIVE = 14;
/** With what is cached. */
export const RESERVED = 16;
/** With context and libraries. */
export const PROCESS = 19;

/* Places of single ones. */
export const UNKNOWN = 11;
export const ROUNDING = 12;
export const PENDING = 13;
export const CACHED_RELEASABLE = 14;
export const CACHED_STUCK = 15;
export const CONTEXT = 18;
export const OTHER_PROCESSES = 19;
export const FREE = 21;

/* Kinds of the pool's pieces; the kind of a used one is its category. */
/** A free piece that empty_cache() gives back. */
export const RELEASABLE = -2;
/** A free piece between blocks in use. */
export const STUCK = -1;
/** Added to the category of a block that a stream still uses. */
export const PENDING_PIECE = 64;
/** Added to the kind of the largest of several narrow pieces that are drawn as one. */
export const MIXED = 128;
