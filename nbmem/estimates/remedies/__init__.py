"""The known remedies: one class and one line in the tuple for each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbmem.estimates.remedies.activations import (
    Autocast,
    ChannelsLast,
    InPlace,
    Offload,
)
from nbmem.estimates.remedies.batches import Expandable, FourMicroBatches, MicroBatches
from nbmem.estimates.remedies.blocks import Checkpoint, SelectiveCheckpoint
from nbmem.estimates.remedies.compiled import ActivationBudget, Compile, CompileGraphs
from nbmem.estimates.remedies.diffusion import OffloadedModels, TiledDecoder
from nbmem.estimates.remedies.language_models import (
    Adapters,
    Float16,
    FourBit,
    FusedAttention,
    HalfAdapters,
    LossInParts,
    OffloadedCache,
    RepeatedHeads,
)
from nbmem.estimates.remedies.optimizers import EightBit, Fused, NoForeach, PlainSGD
from nbmem.estimates.remedies.paging import Unified
from nbmem.estimates.remedies.parallel import DataParallel, Parallel, ZeroOptimizer
from nbmem.estimates.remedies.patches import RemedyPatches, watched
from nbmem.estimates.remedies.sharding import Hybrid, Sharded, ShardedGradients
from nbmem.estimates.remedies.tensor_parallel import TensorParallel
from nbmem.estimates.remedies.variants import VARIANTS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nbmem.estimates.programs.user_names import ProgramNames
    from nbmem.estimates.remedies.base import Remedy

REMEDIES: tuple[type[Remedy], ...] = (
    Expandable,
    Fused,
    ChannelsLast,
    InPlace,
    FusedAttention,
    RepeatedHeads,
    Float16,
    LossInParts,
    TiledDecoder,
    Autocast,
    NoForeach,
    EightBit,
    MicroBatches,
    FourMicroBatches,
    SelectiveCheckpoint,
    Checkpoint,
    ActivationBudget,
    Offload,
    HalfAdapters,
    OffloadedCache,
    OffloadedModels,
    Adapters,
    FourBit,
    PlainSGD,
    Compile,
    CompileGraphs,
    Unified,
)
"""By price, the cheapest first; remedies that are slow to run are last."""

PARALLELISMS: tuple[type[Parallel], ...] = (
    DataParallel,
    ZeroOptimizer,
    ShardedGradients,
    Hybrid,
    Sharded,
    TensorParallel,
)
"""Parallelisms for a program of one card, by what they communicate, the least first."""

BY_KEY: dict[str, type[Remedy]] = {kind.key: kind for kind in (*REMEDIES, *PARALLELISMS, *VARIANTS)}


def applied(
    keys: Iterable[str], own: ProgramNames | None = None, room: int = 0
) -> AbstractContextManager[RemedyPatches]:
    """Return a context in which a program runs under remedies.

    Args:
        keys: Which ones.
        own: The program's names for its parts; None for the usual names.
        room: Bytes of the card that the process may have.
    """
    remedies = [BY_KEY[key]() for key in keys]
    for remedy in remedies:
        remedy.own = own or remedy.own
        remedy.room = room
    return watched(remedies)


def conf_of(keys: Sequence[str]) -> str | None:
    """Return the allocator settings with what remedies add, or None.

    The environment's own settings come first. None if the remedies add nothing.
    """
    added = [BY_KEY[key].conf for key in keys if BY_KEY[key].conf]
    if not added:
        return None
    given = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF")
    return ",".join([*([given] if given else []), *added])


def parts_of(keys: Sequence[str]) -> int:
    """Return into how many parts remedies cut the batch; 1 for none."""
    return max((BY_KEY[key].parts for key in keys), default=1)


def oversubscribes(keys: Iterable[str]) -> bool:
    """Return whether a remedy lets a program be larger than the card."""
    return any(BY_KEY[key].oversubscribes for key in keys)


def is_slow(keys: Iterable[str]) -> bool:
    """Return whether a run under a remedy takes much longer than others."""
    return any(BY_KEY[key].slow for key in keys)


def exclude_each_other(keys: Sequence[str]) -> bool:
    """Return whether two of the remedies are of one group."""
    groups = [BY_KEY[key].group for key in keys if BY_KEY[key].group]
    return len(groups) != len(set(groups))


def find_idle(names: Mapping[str, Any]) -> dict[str, str]:
    """Return remedies that cannot help a program, with the reasons.

    This machine lacks what they need, or the program has nothing that they change.

    Args:
        names: The program's variables at its end. If no model or no optimizer is among them (a
            function may have made them), only what this machine lacks is reported.
    """
    import torch

    missing = {kind.key: why for kind in REMEDIES if (why := kind.missing()) is not None}
    values = list(names.values())
    models = [v for v in values if issubclass(type(v), torch.nn.Module)]
    steppers = [v for v in values if issubclass(type(v), torch.optim.Optimizer)]
    if not (models and steppers):
        return missing
    idle = {
        kind.key: kind.idle_reason or kind.not_applicable
        for kind in REMEDIES
        if kind.idle(models, steppers)
    }
    return {**idle, **missing}
