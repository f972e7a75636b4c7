"""Memory categories of the ledger.

They follow the taxonomy of DNNMem (ESEC/FSE 2020), completed so that they cover the whole card.

The live categories count requested bytes. With rounding and pending they sum to the active bytes.
With the two cached ones they sum to the reserved bytes. With other frameworks and the context they
sum to the process, and with the rest to the card.

A tensor's size is its requested size, in every view, and `rounding` has a line of its own. The
effect of freeing a tensor is counted in blocks. Two figures for one tensor in two views looked like
a mistake.

The card is NVML's: the total that nvidia-smi shows (on an H100 81,559 MiB), not torch's
`total_memory` (81,079 MiB). Bytes that the driver reserves are a category of their own. Counted as
other processes, they showed 447 MiB on a T4 that no other process used.
"""

from __future__ import annotations

from enum import IntEnum


class Category(IntEnum):
    """A category of bytes on the card, in the order in which views stack them."""

    WEIGHTS = 0
    BUFFERS = 1
    GRADIENTS = 2
    OPTIMIZER_STATE = 3
    INPUTS = 4
    ACTIVATIONS = 5
    OUTPUT_GRADIENTS = 6
    TEMPORARIES = 7
    WORKSPACE = 8
    COMMUNICATION = 9
    USER_TENSORS = 10
    UNKNOWN = 11
    ROUNDING = 12
    PENDING = 13
    CACHED_RELEASABLE = 14
    CACHED_STUCK = 15
    FRAMEWORKS = 16
    FRAMEWORKS_CACHED = 17
    CONTEXT = 18
    OTHER_PROCESSES = 19
    DRIVER = 20
    FREE = 21

    @property
    def key(self) -> str:
        """The category's name in JSON and in Python: `optimizer_state`."""
        return self.name.lower()

    @property
    def label(self) -> str:
        """The category's display name."""
        return LABELS[self]


LABELS: dict[Category, str] = {
    Category.WEIGHTS: "weights",
    Category.BUFFERS: "buffers",
    Category.GRADIENTS: "gradients",
    Category.OPTIMIZER_STATE: "optimizer state",
    Category.INPUTS: "inputs",
    Category.ACTIVATIONS: "activations",
    Category.OUTPUT_GRADIENTS: "output gradients",
    Category.TEMPORARIES: "temporaries",
    Category.WORKSPACE: "workspace",
    Category.COMMUNICATION: "communication",
    Category.USER_TENSORS: "user tensors",
    Category.UNKNOWN: "unknown",
    Category.ROUNDING: "rounding",
    Category.PENDING: "pending",
    Category.CACHED_RELEASABLE: "cached, releasable",
    Category.CACHED_STUCK: "cached, stuck",
    Category.FRAMEWORKS: "other frameworks",
    Category.FRAMEWORKS_CACHED: "other frameworks, cached",
    Category.CONTEXT: "context and libraries",
    Category.OTHER_PROCESSES: "other processes",
    Category.DRIVER: "kept by the driver",
    Category.FREE: "free",
}

MEANINGS: dict[Category, str] = {
    Category.WEIGHTS: "storages of registered parameters",
    Category.BUFFERS: "storages of registered buffers",
    Category.GRADIENTS: "the .grad of parameters",
    Category.OPTIMIZER_STATE: "what optimizer.state holds",
    Category.INPUTS: "tensors given to the model, not made by a graph",
    Category.ACTIVATIONS: "forward results kept for backward",
    Category.OUTPUT_GRADIENTS: "gradients of activations, on their way through backward",
    Category.TEMPORARIES: "born and dead inside one phase",
    Category.WORKSPACE: "scratch memory of cuBLAS, cuBLASLt and cuDNN",
    Category.COMMUNICATION: "buckets and flat buffers of DDP, FSDP and ZeRO",
    Category.USER_TENSORS: "named from the notebook and none of the above",
    Category.UNKNOWN: "active bytes that nothing names",
    Category.ROUNDING: "block bytes minus requested bytes of allocated blocks",
    Category.PENDING: "freed, but another stream still uses it",
    Category.CACHED_RELEASABLE: "free whole segments: what empty_cache() gives back",
    Category.CACHED_STUCK: "free pieces of segments in use, and what graphs keep for replay",
    Category.FRAMEWORKS: "in use by CuPy, JAX, RMM and others in this process",
    Category.FRAMEWORKS_CACHED: "what their pools hold and do not use",
    Category.CONTEXT: "CUDA context and libraries: the rest of the process",
    Category.OTHER_PROCESSES: "the card's used bytes minus this process",
    Category.DRIVER: "NVML's reserved bytes, and those that it counts for no process",
    Category.FREE: "the rest of the card",
}

ON_OTHERS: dict[str, dict[Category, tuple[str, str]]] = {
    "cpu": {
        Category.CONTEXT: (
            "Python and the rest",
            "resident bytes of this process beyond the tensors that were seen",
        ),
        Category.OTHER_PROCESSES: ("other processes", "what the machine uses beside this one"),
        Category.FREE: ("available", "what the kernel could give, page cache that it drops too"),
    },
    "mps": {
        Category.CONTEXT: (
            "cache and MPSGraph",
            "what Metal counts for this process beyond the live tensors",
        ),
        Category.FREE: ("free", "the rest of the working set that Metal recommends"),
    },
}
"""Name and meaning of categories that differ on devices other than CUDA's, by torch's device
type."""

LIVE: tuple[Category, ...] = tuple(c for c in Category if c <= Category.UNKNOWN)
"""Categories of live requested bytes: exactly one for each allocation."""
OF_TRAINING: tuple[Category, ...] = (
    Category.WEIGHTS,
    Category.BUFFERS,
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
)
"""Memory that modules and optimizers own: known while a loop runs, in stacking order."""
ACTIVE: tuple[Category, ...] = (*LIVE, Category.ROUNDING, Category.PENDING)
RESERVED: tuple[Category, ...] = (*ACTIVE, Category.CACHED_RELEASABLE, Category.CACHED_STUCK)
BESIDE: tuple[Category, ...] = (Category.FRAMEWORKS, Category.FRAMEWORKS_CACHED)
"""Memory that other allocators of this process hold."""
PROCESS: tuple[Category, ...] = (*RESERVED, *BESIDE, Category.CONTEXT)
OUTSIDE: tuple[Category, ...] = (
    *BESIDE,
    Category.CONTEXT,
    Category.OTHER_PROCESSES,
    Category.DRIVER,
)
"""Memory in use on the card beyond torch's reserved bytes."""
CARD: tuple[Category, ...] = tuple(Category)
