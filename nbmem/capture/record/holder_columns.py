"""Convert the holders found at the end of a recording to columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.capture.tensors.modules import is_module
from nbmem.core.session.categories import OF_TRAINING
from nbmem.core.session.session import BeforeReturn, Holders
from nbmem.core.units import MIB

if TYPE_CHECKING:
    from nbmem.capture.record.counter_samples import CounterLog
    from nbmem.capture.record.recorder import Recorder
    from nbmem.capture.record.storage_registry_log import StorageLog
    from nbmem.capture.record.tensor_labels import TensorLabelLog
    from nbmem.core.session.holders import HeldStorage
    from nbmem.core.session.session import CounterSamples

MATTERS = MIB
"""The heap is walked if at least this many live bytes are no weight, buffer, gradient or optimizer
state. Those already have names, and the walk takes up to half a second."""


def matters(
    counter_samples: CounterLog, tensor_labels: TensorLabelLog, storage_log: StorageLog
) -> bool:
    """Return True if enough unnamed memory lives to justify a heap walk."""
    named = _training_bytes(tensor_labels, len(counter_samples.t_ns) - 1)
    return any(
        (counters := counter_samples.now(index)) is not None
        and counters.allocated - named.get(index, 0) >= MATTERS
        for index in counter_samples.devices()
    ) or storage_log.matters(MATTERS, named)


def _training_bytes(tensor_labels: TensorLabelLog, sample: int) -> dict[int, int]:
    """Return the bytes per card of training tensors seen since a sample.

    These are weights, buffers, gradients and optimizer state. If a module was called, only models
    in use count: another one may be a forgotten copy.
    """
    used = tensor_labels.owners_in_use()
    sizes: dict[int, dict[int, int]] = {}
    in_use: dict[int, bool] = {id(None): True}
    for seen, owner in tensor_labels.rows.since(sample):
        if seen.category not in OF_TRAINING:
            continue
        if owner is not None and id(owner) not in in_use:
            in_use[id(owner)] = used is None or id(owner) in used or not is_module(owner.ref())
        if in_use[id(owner)]:
            sizes.setdefault(seen.device, {})[seen.addr] = seen.size
    return {device: sum(found.values()) for device, found in sizes.items()}


def columns(storages: Sequence[HeldStorage], names: dict[str, int]) -> Holders:
    """Return the held storages of one card as columns.

    `names` collects their texts and maps them to indices.
    """
    rows = [(held, holder) for held in storages for holder in held.holders]

    def texts(values: list[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([names.setdefault(text, len(names)) for text in values], np.int64)

    return Holders(
        addr=np.array([held.addr for held, _ in rows], np.int64),
        size=np.array([held.size for held, _ in rows], np.int64),
        form=texts([held.form for held, _ in rows]),
        kind=np.array([holder.kind for _, holder in rows], np.uint8),
        root=texts([holder.root for _, holder in rows]),
        path=texts([holder.path for _, holder in rows]),
    )


def before_return(
    recorder: Recorder, place: int, counter_samples: CounterSamples, names: dict[str, int]
) -> BeforeReturn | None:
    """Return the holders before a function's variables were freed.

    Args:
        recorder: The recorder.
        place: Where the heap walk has the device's storages.
        counter_samples: The device's counter samples, placed among its events.
        names: As for `columns`.
    """
    then = recorder.before_return
    if then is None or then.freed >= len(counter_samples.position):
        return None
    held = columns(then.held.by_device.get(place, ()), names)
    event, freed = counter_samples.position[[then.sample, then.freed]].tolist()
    return BeforeReturn(function=then.function, event=event, freed=freed, holders=held)
