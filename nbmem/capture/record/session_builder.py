"""Build a Session from a finished recording.

Events are cut to the recording, and everything else is placed among them. Phases of a session are
limited here, and drawn phases in analysis/visible_phases.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.capture.interpreter.notebook_cells import files_of_cells, lines_of, number_cell_files
from nbmem.capture.record.first_lines import large_allocation_lines, without_stacks
from nbmem.capture.record.holder_columns import before_return, columns
from nbmem.capture.record.module_calls import calls_of, placed
from nbmem.capture.record.pauses import without_pauses
from nbmem.capture.record.phase_builder import PhaseBuilder
from nbmem.capture.record.spilled_memory import card_of
from nbmem.capture.record.storage_events import traces_without_history
from nbmem.capture.record.training_threads import one_loop, trained_together
from nbmem.capture.record.unhooked_intervals import ObservedAllocations, UnhookedIntervals
from nbmem.core.files.torch_snapshot import DeviceHistory, device_history
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.session.cards import fullest, highest_reserved
from nbmem.core.session.categories import Category
from nbmem.core.session.events import Action, Events, Layout, Stack
from nbmem.core.session.session import (
    MAX_LINES,
    BlockUses,
    DeviceTrace,
    Session,
    Source,
    StorageLabels,
)
from nbmem.core.session.source_files import recorded_file
from nbmem.core.session.spans import Span
from nbmem.core.session.tensor_parts import parts_fact

if TYPE_CHECKING:
    from nbmem.capture.record.draft_phases import DraftPhase
    from nbmem.capture.record.recorder import Recorder
    from nbmem.core.arrays import Ints
    from nbmem.core.session.ranks import Rank

MAX_PHASES = 200_000
"""Phases of a recording; the latest are retained. A million events in a loop of twenty events a
step make as many. A phase takes about 300 bytes, here and in a file."""


def build_session(
    recorder: Recorder, name: str, at_end: Mapping[str, Any] | None, error: str | None
) -> Session:
    """Build the session of a recording; never raise.

    A part that cannot be placed is omitted and noted.
    """
    names: dict[str, int] = {}
    stacks: list[Stack] = []
    devices: list[DeviceTrace] = []
    for index in recorder.counter_samples.devices() if at_end is not None else ():
        with recorder.guard(f"the events of card {index}"):
            devices.append(_device(recorder, index, at_end or {}, names, stacks))
    if devices:
        with recorder.guard("what the loop called"):
            calls = calls_of(
                recorder.hook_events.hook_events.part(),
                recorder.tensor_labels.owners.name_of,
                names,
            )
            devices = [replace(one, calls=placed(calls, one.counter_samples)) for one in devices]
    devices = devices or traces_without_history(recorder, names)
    spans: tuple[Span, ...] = ()
    with recorder.guard("the phases"):
        spans = _spans(recorder, name, devices, error)
    source: Source | None = None
    with recorder.guard("the text of the lines"):
        files, stacks[:] = files_of_cells(stacks), number_cell_files(stacks)
        recorder.facts |= large_allocation_lines(devices, stacks, files)
        file = recorded_file(stacks)
        source = None if file is None else Source(file, tuple(lines_of(file, files)[:MAX_LINES]))
    if recorder.history.only_first_stacks:
        devices, source = list(map(without_stacks, devices)), None
        stacks.clear()
    rank: Rank | None = None
    with recorder.guard("which rank it was"):
        rank = recorder.ranks.ended(error)
    for sentence in recorder.tensor_labels.notes():
        recorder.note(sentence)
    session = Session(
        name=name,
        created_ns=CLOCK.time_ns(),
        devices=tuple(devices),
        spans=spans,
        stacks=tuple(stacks),
        names=tuple(names),
        notes=tuple(recorder.notes),
        error=error,
        refusals=tuple(recorder.refusals),
        facts=recorder.facts | _pools(recorder.pools) | _parts(recorder) | _facts_then(recorder),
        source=source,
        rank=rank,
    )
    return without_pauses(session, recorder.pauses)


def _facts_then(recorder: Recorder) -> dict[str, Any]:
    """Return the facts before a function's variables were freed."""
    then = recorder.before_return
    return {} if then is None else {"before_return": then.facts}


def _pools(users: Mapping[int, str]) -> dict[str, Any]:
    found = [{"pool": str(number), "users": text} for number, text in sorted(users.items())]
    return {"pools": found} if found else {}


def _parts(recorder: Recorder) -> dict[str, Any]:
    """Return the parts of the tensors' names as a fact; empty without any."""
    parts = parts_fact(recorder.tensor_labels.rows.parts)
    return {"parts": parts} if parts else {}


def _device(
    recorder: Recorder,
    index: int,
    at_end: Mapping[str, Any],
    names: dict[str, int],
    stacks: list[Stack],
) -> DeviceTrace:
    history = device_history(at_end, index)
    # Snapshots, including nbmem's own at the start, are in the history but change no memory.
    taken = history.events[np.flatnonzero(history.events.action != Action.SNAPSHOT)]
    events, entries_before, lost = _cut(recorder, index, taken)
    counter_samples = recorder.counter_samples.place(index, events, entries_before)
    info = card_of(recorder, index, highest_reserved(events, history.layout_at_end))
    held = None if recorder.held is None else recorder.held.by_device.get(index, ())
    return DeviceTrace(
        info=info,
        release=info.torch.split("+")[0],
        settings=history.settings,
        start=None if lost else _start(recorder, index),
        events=_with_stacks(events, history, stacks),
        end=history.layout_at_end,
        dropped=lost,
        counter_samples=counter_samples,
        samples=recorder.sampler.samples(index),
        owners=recorder.sampler.framework_readings(index, names),
        kept_pools=tuple(sorted(recorder.pools)),
        collected=recorder.collections.place(
            index, events, entries_before, imitated=recorder.imitated
        ),
        block_uses=_block_uses(recorder, index, len(events)),
        before_return=before_return(recorder, index, counter_samples, names),
        storage_labels=recorder.tensor_labels.rows.place(index, counter_samples, names),
        other_processes=recorder.sampler.other_processes(index),
        holders=None if held is None else columns(held, names),
    )


def _block_uses(recorder: Recorder, index: int, events: int) -> BlockUses | None:
    """Return what operators did not use, placed among the events."""
    if index not in recorder.block_uses:
        return None
    rows = np.array(recorder.block_uses[index], np.int64).reshape(-1, 5)
    rows = rows[rows[:, 1] <= events]
    addr, made, last, used, in_backward = rows.T
    return BlockUses(
        addr=addr,
        made=events - made,
        last=events - last,
        used=used,
        in_backward=in_backward,
    )


def _cut(recorder: Recorder, index: int, events: Events) -> tuple[Events, int | None, int]:
    """Cut a card's history to the events of the recording.

    Returns:
        Its events, the history's length before them (None if only the clock can tell), and the
        number of the recording's events that were lost before them.
    """
    if recorder.counter_samples.were_reset(index):
        recorder.note(
            "The accumulated counters were reset inside the cell, so its phases are placed by the "
            "clock; an event at their very edge may be a phase off."
        )
        first = int(np.searchsorted(events.t_ns, recorder.counter_samples.t_ns[0]))
        return events[first:], None, 0
    counters = recorder.counter_samples.now(index)
    gone = (counters.actions if counters is not None else len(events)) - len(events)
    begin = recorder.counter_samples.before_first(index)
    lost = max(0, gone - begin)
    if lost:
        recorder.note(
            f"The first {lost} events of card {index} were dropped: the history keeps "
            f"{recorder.history.max_entries}. The figures before them are the counters' alone."
        )
    return events[max(0, begin - gone) :], max(begin, gone), lost


def _start(recorder: Recorder, index: int) -> Layout:
    """Return the layout at the start of the recording.

    Before CUDA was initialized it is empty.
    """
    if recorder.at_start is None or not recorder.counter_samples.held_first(index):
        return Layout.empty()
    return device_history(recorder.at_start, index).layout_at_end


def _with_stacks(events: Events, history: DeviceHistory, stacks: list[Stack]) -> Events:
    """Return events whose stacks index the session's list of stacks.

    The card's stacks are appended to that list, after those of other cards.
    """
    offset = len(stacks)
    stacks.extend(history.stacks)
    if not offset:
        return events
    moved = np.where(events.stack < 0, events.stack, events.stack + offset)
    return Events(**{**dict(events.columns()), "stack": moved})


def _spans(
    recorder: Recorder, name: str, devices: Sequence[DeviceTrace], error: str | None
) -> tuple[Span, ...]:
    """Return the spans of the cell, its phases and the user's blocks.

    Each has a range of events on every card. Phases are those of the fullest card. All spans are
    cut to the cell's time.
    """
    t_ns = recorder.counter_samples.t_ns
    if not t_ns:
        return ()
    begin = recorder.began_ns or t_ns[0]
    end = max(begin, recorder.ended_ns or t_ns[-1])

    def within(t0_ns: int, t1_ns: int) -> dict[str, int]:
        return {"t0_ns": min(max(t0_ns, begin), end), "t1_ns": min(max(t1_ns, begin), end)}

    every = tuple(len(device.events) for device in devices)
    whole = within(begin, end)
    spans = [Span(kind="cell", name=name, **whole, first=(0,) * len(every), last=every)]
    if not devices:
        return tuple(spans)
    stretches, main = _phases(recorder, devices, error)
    for stretch, first, last in zip(stretches, *_places(stretches, devices, main), strict=True):
        spans.append(
            Span(
                kind="phase",
                name=stretch.name,
                step=stretch.step,
                parent=0 if stretch.parent is None else stretch.parent + 1,
                **within(stretch.t0_ns, stretch.t1_ns),
                first=first,
                last=last,
            )
        )
    for block, begun, ended in recorder.blocks:
        spans.append(
            Span(
                kind="block",
                name=block,
                parent=0,
                **within(t_ns[begun], t_ns[ended]),
                first=tuple(int(d.counter_samples.position[begun]) for d in devices),
                last=tuple(int(d.counter_samples.position[ended]) for d in devices),
            )
        )
    return tuple(spans)


def _phases(
    recorder: Recorder, devices: Sequence[DeviceTrace], error: str | None
) -> tuple[list[DraftPhase], int]:
    """Build the phases, and return them with the index of their card.

    It is the card whose events the phases are built from. There are no phases if several threads
    trained at once.
    """
    main = fullest(devices)
    device = devices[main]
    recorded = [
        hook_event
        for hook_event in recorder.hook_events.hook_events.part()
        if hook_event.sample >= recorder.storage_log.over_at
    ]
    hook_events, together = one_loop(recorded)
    if hook_events is None:
        recorder.note(trained_together(together, recorder.hook_events.names()))
        recorder.facts["threads"] = len(together)
        return [], main
    gaps = UnhookedIntervals(
        device.events, _input_and_weight_positions(device.events, device.storage_labels)
    )
    builder = PhaseBuilder(
        device.events, device.counter_samples, gaps, seeds=device.info.keeps_history
    )
    looked_at = recorder.hook_events.unused_forwards(failed=error is not None)
    stretches = builder.build(
        hook_events, **recorder.hook_events.update_at_end(), looked_at=looked_at
    )
    return _bounded(recorder, stretches, lost=bool(device.dropped)), main


def _input_and_weight_positions(
    events: Events, storage_labels: StorageLabels
) -> ObservedAllocations:
    """Return the positions at which observed inputs and weights were made.

    Tensors that were allocated before the recording are omitted.
    """
    return ObservedAllocations(
        inputs=_allocated_positions(events, storage_labels, Category.INPUTS),
        weights=_allocated_positions(events, storage_labels, Category.WEIGHTS, Category.BUFFERS),
    )


def _allocated_positions(events: Events, storage_labels: StorageLabels, *what: Category) -> Ints:
    wanted = np.flatnonzero(np.isin(storage_labels.category, what))
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    if not len(wanted) or not len(allocs):
        return np.zeros(0, np.int64)
    addrs, place = np.unique(events.addr[allocs], return_inverse=True)
    width = len(events) + 1
    keys = place * width + allocs
    order = np.argsort(keys)
    at = np.minimum(np.searchsorted(addrs, storage_labels.addr[wanted]), len(addrs) - 1)
    # The last allocation at the address before the tensor was observed.
    index = np.searchsorted(keys[order], at * width + storage_labels.position[wanted]) - 1
    row = allocs[order[np.maximum(index, 0)]]
    found = (index >= 0) & (events.addr[row] == storage_labels.addr[wanted])
    return np.unique(row[found])


def _bounded(recorder: Recorder, stretches: list[DraftPhase], *, lost: bool) -> list[DraftPhase]:
    """Drop phases whose events were lost, and the earliest beyond a limit.

    Steps are numbered before, so the remaining phases retain their step numbers.
    """
    there = [i for i, one in enumerate(stretches) if not lost or one.last > 0]
    outer = [i for i in there if stretches[i].parent is None][-MAX_PHASES:]
    place = {index: at for at, index in enumerate(outer)}
    inner = [i for i in there if stretches[i].parent in place][-MAX_PHASES:]
    kept = [*outer, *inner]
    if len(kept) == len(stretches):
        return stretches
    steps = [one.step for one in stretches if one.step is not None]
    first = next((stretches[i].step for i in outer if stretches[i].step is not None), None)
    recorder.note(
        f"{len(stretches) - len(kept)} of {len(stretches)} phases are left out, the earliest "
        f"(of {max(steps, default=0) + 1} steps those before step {first}): their events were "
        f"dropped, or there are more than {MAX_PHASES}."
    )
    return [
        replace(stretches[i], parent=None if (up := stretches[i].parent) is None else place[up])
        for i in kept
    ]


def _places(
    stretches: Sequence[DraftPhase], devices: Sequence[DeviceTrace], main: int
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the phases' first and last events on every card.

    They are exact on the main card, and found by time on the others.
    """
    begins = np.array([one.t0_ns for one in stretches], np.int64)
    ends = np.array([one.t1_ns for one in stretches], np.int64)
    first, last = [], []
    for index, device in enumerate(devices):
        times = device.events.t_ns
        if index == main:
            first.append([one.first for one in stretches])
            last.append([one.last for one in stretches])
        else:
            first.append(np.searchsorted(times, begins).tolist())
            last.append(np.searchsorted(times, ends).tolist())
    return list(zip(*first, strict=True)), list(zip(*last, strict=True))
