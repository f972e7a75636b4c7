"""Convert a storage registry to the events of a device's recording.

Each storage is a segment of its own. The segment is allocated at the counter sample where the
storage was first observed, and freed at the one where it was found freed. The sums at every sample
are those of the tensors, to the byte. What a device's own counters count beyond them is one unnamed
block and cache.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.capture.record.holder_columns import before_return, columns
from nbmem.capture.tensors.storage_registry import ALIVE, StorageRegistry
from nbmem.core.session.events import (
    BEYOND,
    NOT_KNOWN,
    Action,
    Blocks,
    BlockState,
    Events,
    Layout,
    Segments,
)
from nbmem.core.session.host_memory import MachineReadings
from nbmem.core.session.session import CardSamples, CounterSamples, DeviceInfo, DeviceTrace

if TYPE_CHECKING:
    from nbmem.capture.record.recorder import Recorder
    from nbmem.core.arrays import Ints, Mask

UNNAMED, CACHED = BEYOND, 2 * BEYOND
"""Addresses without tensors, for what counters count beyond the observed tensors."""
_OF_BLOCKS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
_BIRTH = (Action.SEGMENT_ALLOC, Action.ALLOC)
_DEATH = (Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.SEGMENT_FREE)


def traces_without_history(recorder: Recorder, names: dict[str, int]) -> list[DeviceTrace]:
    """Build the recordings of devices without an allocator history.

    These are the host or another device, if no CUDA card was used.
    """
    devices: list[DeviceTrace] = []
    with recorder.guard("the memory where no card is"):
        for sentence in recorder.storage_log.notes(recorder.tensor_labels.backwards_unread()):
            recorder.note(sentence)
        for registry, info in recorder.storage_log.devices():
            devices.append(_trace(recorder, registry, info, names))
    if not devices and recorder.chosen:
        recorder.note(
            "Nothing was allocated on the chosen card. Tensors on the CPU are followed only where "
            "no card is chosen."
        )
    return devices


def _trace(
    recorder: Recorder, registry: StorageRegistry, info: DeviceInfo, names: dict[str, int]
) -> DeviceTrace:
    t_ns = np.array(recorder.counter_samples.t_ns, np.int64)
    read, place, held = recorder.storage_log.of(info.index), -1 - info.index, recorder.held
    lifetimes = _lifetimes_of(registry, info.index, len(t_ns))
    lifetimes = _Lifetimes(
        *map(np.concatenate, zip(lifetimes, _beyond(lifetimes, read, len(t_ns)), strict=True))
    )
    events, position = _events(lifetimes, t_ns)
    named = lifetimes.addr < CACHED
    allocated = _sums(_Lifetimes(*(column[named] for column in lifetimes)), len(t_ns))
    reserved = _sums(lifetimes, len(t_ns))
    samples, owners = _samples(read, reserved), None
    if info.kind == "cuda":
        info = _sized(recorder, info, int(reserved.max(initial=0)))
        samples = _beside(recorder.sampler.samples(info.index), t_ns, reserved)
        owners = recorder.sampler.framework_readings(info.index, names)
    counter_samples = CounterSamples(
        t_ns=t_ns,
        position=position,
        allocated=allocated,
        active=allocated,
        requested=allocated,
        reserved=reserved,
    )
    return DeviceTrace(
        info=info,
        release=info.torch.split("+")[0],
        settings={"rounds": False},
        start=_layout(lifetimes, lifetimes.first == 0),
        events=events,
        end=_layout(lifetimes, lifetimes.freed_at == len(t_ns)),
        dropped=0,
        counter_samples=counter_samples,
        samples=samples,
        machine=_machine(registry, read, t_ns) if info.is_host else None,
        owners=owners,
        other_processes=recorder.sampler.other_processes(info.index) if owners is not None else {},
        storage_labels=recorder.tensor_labels.rows.place(place, counter_samples, names),
        holders=None if held is None else columns(held.by_device.get(place, ()), names),
        before_return=before_return(recorder, place, counter_samples, names),
    )


def _sized(recorder: Recorder, info: DeviceInfo, most: int) -> DeviceInfo:
    """Set a card's size to NVML's figure, or to more for managed memory.

    Tensors in managed memory can exceed the card.
    """
    total, driver = recorder.sampler.card_bytes(info.index) or (info.total_bytes, 0)
    if most + driver > total:
        recorder.note(
            f"torch's tensors and their pool took up to {most} B of a card that has {total} B: "
            "it is managed memory, of which the host holds the rest. The ledger's total is what "
            "both hold."
        )
        total = most + driver
    return replace(info, total_bytes=total, driver_bytes=driver)


def _beside(samples: CardSamples, t_ns: Ints, reserved: Ints) -> CardSamples:
    """Fit readings of a whole card to the reserved bytes known at their time.

    The process's bytes are at least the reserved bytes, and the card's used bytes at least the
    process's.
    """
    sample = np.maximum(np.searchsorted(t_ns, samples.t_ns, side="right") - 1, 0)
    held = reserved[sample] if len(reserved) else samples.reserved
    process = np.where(samples.process == NOT_KNOWN, NOT_KNOWN, np.maximum(samples.process, held))
    used = np.where(
        samples.used == NOT_KNOWN, NOT_KNOWN, np.maximum(samples.used, np.maximum(process, held))
    )
    return replace(samples, used=used, process=process, reserved=held)


class _Lifetimes(NamedTuple):
    """Blocks of memory, and the counter samples between which each existed."""

    addr: Ints
    size: Ints
    first: Ints
    freed_at: Ints


def _lifetimes_of(registry: StorageRegistry, index: int, samples: int) -> _Lifetimes:
    """Return the lifetimes of one device's storages.

    A storage that is alive at the end is freed after the last counter sample.
    """
    columns = [
        np.array(column, np.int64) for column in registry.columns[: len(_Lifetimes._fields) + 1]
    ]
    addr, size, first, freed_at = (column[columns[0] == index] for column in columns[1:])
    freed_at = np.where(freed_at == ALIVE, samples, freed_at)
    lifetimes = _Lifetimes(addr, size, first, freed_at)
    return _Lifetimes(*(column[first < freed_at] for column in lifetimes))


def _beyond(lifetimes: _Lifetimes, read: Ints, samples: int) -> _Lifetimes:
    """Return what the device's counters hold beyond the observed tensors.

    It is an unnamed block and cached memory.
    """
    counted = read[(read[:, 2] != NOT_KNOWN) & (read[:, 1] < samples)]
    if not len(counted) or not samples:
        return _Lifetimes(*(np.zeros(0, np.int64) for _ in _Lifetimes._fields))
    at = np.maximum(np.searchsorted(counted[:, 1], np.arange(samples), side="right") - 1, 0)
    seen = _sums(lifetimes, samples)
    unnamed = np.maximum(counted[at, 2] - seen, 0)
    cached = np.maximum(counted[at, 3] - seen - unnamed, 0)
    parts = [_runs(unnamed, UNNAMED), _runs(cached, CACHED)]
    return _Lifetimes(*map(np.concatenate, zip(*parts, strict=True)))


def _runs(sizes: Ints, addr: int) -> _Lifetimes:
    """Convert a size per counter sample to stretches of constant size."""
    first = np.flatnonzero(np.diff(sizes, prepend=-1))
    freed_at = np.append(first[1:], len(sizes))
    kept = sizes[first] > 0
    where = np.full(int(kept.sum()), addr, np.int64)
    return _Lifetimes(where, sizes[first][kept], first[kept], freed_at[kept])


def _sums(lifetimes: _Lifetimes, samples: int) -> Ints:
    """Return the bytes that existed at each counter sample."""
    change = np.zeros(samples + 1, np.int64)
    np.add.at(change, lifetimes.first, lifetimes.size)
    np.subtract.at(change, lifetimes.freed_at, lifetimes.size)
    held: Ints = np.cumsum(change)[:samples]
    return held


def _events(lifetimes: _Lifetimes, t_ns: Ints) -> tuple[Events, Ints]:
    """Convert stretches to events, and place the counter samples in them.

    At each sample, frees precede allocations.
    """
    parts = []
    dies, born = lifetimes.freed_at < len(t_ns), lifetimes.first > 0
    for which, sample, order, actions in (
        (dies, lifetimes.freed_at, 0, _DEATH),
        (born, lifetimes.first, 1, _BIRTH),
    ):
        for at, action in enumerate(actions):
            blocks = which & (lifetimes.addr < CACHED) if action in _OF_BLOCKS else which
            rows = np.flatnonzero(blocks)
            step = np.full(len(rows), order), rows, np.full(len(rows), at)
            parts.append(np.stack([sample[rows], *step, np.full(len(rows), action)], axis=1))
    table = np.concatenate(parts)
    table = table[np.lexsort((table[:, 3], table[:, 2], table[:, 1], table[:, 0]))]
    rows = table[:, 2]
    events = Events(
        action=table[:, 4].astype(np.uint8),
        addr=lifetimes.addr[rows],
        size=lifetimes.size[rows],
        stream=np.zeros(len(rows), np.int64),
        t_ns=t_ns[table[:, 0]] if len(rows) else np.zeros(0, np.int64),
        stack=np.full(len(rows), -1, np.int64),
    )
    return events, np.searchsorted(table[:, 0], np.arange(len(t_ns)), side="right")


def _machine(registry: StorageRegistry, read: Ints, t_ns: Ints) -> MachineReadings:
    """Return the parts of the host's memory over time.

    The kernel reports files, shared memory and cache. Tensors in shared memory are summed at each
    counter sample.
    """
    shared = np.array(registry.columns.shared, np.int64) == 1
    lifetimes = _Lifetimes(
        *(np.array(column, np.int64)[shared] for column in registry.columns[1:5])
    )
    lifetimes = lifetimes._replace(
        freed_at=np.where(lifetimes.freed_at == ALIVE, len(t_ns), lifetimes.freed_at)
    )
    tensors = _sums(lifetimes, len(t_ns))
    changes = np.flatnonzero(np.diff(tensors, prepend=-1))
    whole = read[(read[:, 6:] != NOT_KNOWN).any(axis=1)]
    when = np.unique(np.concatenate([t_ns[changes], whole[:, 0]]))
    at = np.searchsorted(t_ns, when, side="right") - 1
    row = np.searchsorted(whole[:, 0], when, side="right") - 1
    host_parts = whole[np.maximum(row, 0), 6:] if len(whole) else np.full((len(when), 3), NOT_KNOWN)
    files, shm, cache = host_parts.T
    return MachineReadings(
        t_ns=when,
        tensors=tensors[np.maximum(at, 0)] if len(tensors) else np.zeros(len(when), np.int64),
        files=files.copy(),
        shared=shm.copy(),
        cache=cache.copy(),
    )


def _layout(lifetimes: _Lifetimes, there: Mask) -> Layout:
    """Return the layout of the stretches that existed at one moment."""
    rows = np.flatnonzero(there)
    rows = rows[np.argsort(lifetimes.addr[rows])]
    none, code = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint8)
    blocks = rows[lifetimes.addr[rows] < CACHED]
    free = rows[lifetimes.addr[rows] >= CACHED]
    state = np.repeat([BlockState.ALLOCATED, BlockState.INACTIVE], [len(blocks), len(free)])
    return Layout(
        segments=Segments(
            addr=lifetimes.addr[rows],
            size=lifetimes.size[rows],
            stream=none,
            small=code,
            expandable=code,
            pool=none,
        ),
        blocks=Blocks(  # cached memory comes after all other blocks
            addr=lifetimes.addr[rows],
            size=lifetimes.size[rows],
            requested=lifetimes.size[rows],
            state=state.astype(np.uint8),
            stack=none - 1,
        ),
    )


def _samples(read: Ints, reserved: Ints) -> CardSamples:
    """Convert counter readings to samples of the whole device.

    Between two readings of the whole machine, other processes use as much as in the latest reading.
    """
    t_ns, sample, _, _, used, process, *_ = read.T
    whole = np.flatnonzero((used != NOT_KNOWN) & (process != NOT_KNOWN))
    if len(whole):
        latest = whole[np.maximum(np.searchsorted(whole, np.arange(len(read)), "right") - 1, 0)]
        shifted = used[latest] + process - process[latest]
        used = np.where((used == NOT_KNOWN) & (process != NOT_KNOWN), shifted, used)
    held = reserved[np.minimum(sample, len(reserved) - 1)]
    process = np.where(process == NOT_KNOWN, NOT_KNOWN, np.maximum(process, held))
    used = np.where(used == NOT_KNOWN, NOT_KNOWN, np.maximum(used, process))
    return CardSamples(t_ns=t_ns, used=used, process=process, reserved=held, host=process)
