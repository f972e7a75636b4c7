"""The known remedies: one class and one line in the tuple for each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nbmem.estimates.remedies.activations import (
    Autocast,
    ChannelsLast,
    InPlace,
    Offload,
)
from nbmem.estimates.remedies.batches import Expandable, FourMicroBatches, MicroBatches
from nbmem.estimates.remedies.blocks import Checkpoint
from nbmem.estimates.remedies.optimizers import EightBit, Fused, NoForeach, PlainSGD
from nbmem.estimates.remedies.watching import watched

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from nbmem.estimates.remedies.base import Remedy
    from nbmem.estimates.remedies.watching import Watch

REMEDIES: tuple[type[Remedy], ...] = (
    Expandable,
    Fused,
    ChannelsLast,
    InPlace,
    Autocast,
    NoForeach,
    EightBit,
    MicroBatches,
    FourMicroBatches,
    Checkpoint,
    Offload,
    PlainSGD,
)
"""In the order of their price, the cheapest first."""

BY_KEY = {remedy.key: remedy for remedy in REMEDIES}


def applied(keys: Iterable[str]) -> AbstractContextManager[Watch]:
    """A context in which a program runs under remedies."""
    return watched([BY_KEY[key]() for key in keys])


def conf_of(keys: Sequence[str]) -> str | None:
    """The allocator settings of the environment with what remedies add; None if they add none."""
    added = [BY_KEY[key].conf for key in keys if BY_KEY[key].conf]
    if not added:
        return None
    given = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF")
    return ",".join([*([given] if given else []), *added])


def exclude_each_other(keys: Sequence[str]) -> bool:
    """Whether two of them are of one group."""
    groups = [BY_KEY[key].group for key in keys if BY_KEY[key].group]
    return len(groups) != len(set(groups))
