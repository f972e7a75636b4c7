"""Recorded H100 runs, replayed from requests and followed by events."""

import numpy as np
import pytest

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.driver import SimulatedDriver
from nbmem.allocator.recordings.compare import layout_difference
from nbmem.allocator.recordings.follow import reconstruct
from nbmem.allocator.recordings.inference import LIKELY_TOTAL, emptied_by_user, pools_of
from nbmem.allocator.recordings.predict import Assumptions, Prediction
from nbmem.allocator.recordings.recording import COUNTERS, read_card
from nbmem.allocator.recordings.replay import replay
from nbmem.allocator.recordings.undo_events import undo_with_notes
from nbmem.allocator.settings import AllocatorSettings
from nbmem.core.files.session import save_session
from nbmem.core.session.events import Action, BlockState, Layout
from nbmem.core.units import GIB, MIB
from tests.allocator.programs import RECORDINGS, events_of
from tests.recorded_runs import load, session_of, snapshot_counters

TRACES = sorted((RECORDINGS / "traces").glob("*.json.xz"))
SNAPSHOTS = sorted((RECORDINGS / "snapshots").glob("*.pickle.xz"))
RELEASE = "2.11.0"
CURVES = (*COUNTERS, "releasable")


def workload_name(path):
    return path.name.split(".")[0]


def test_the_recordings_are_all_there():
    assert len(TRACES) == 36
    assert len(SNAPSHOTS) == 18


@pytest.mark.parametrize("path", TRACES, ids=workload_name)
def test_a_run_is_predicted_to_the_byte(path):
    """Addresses, driver events, the final layout, and torch's counters at the end of each phase."""
    result = replay(path)
    assert result.exact, result.text()
    assert result.release_known
    assert result.peak_allocated == result.recorded_peak_allocated
    assert result.peak_reserved == result.recorded_peak_reserved


@pytest.mark.parametrize("path", SNAPSHOTS, ids=workload_name)
def test_a_scenario_is_predicted_to_the_byte(path):
    result = replay(path, release=RELEASE)
    assert result.exact, result.text()
    assert result.peak_allocated == result.recorded_peak_allocated
    assert result.peak_reserved == result.recorded_peak_reserved


def marks_of(path):
    """Return counters at labelled moments, with the events before each."""
    return [mark for mark in snapshot_counters(workload_name(path)) if "t_us" in mark]


@pytest.mark.parametrize("path", SNAPSHOTS, ids=workload_name)
def test_the_model_counts_what_torch_counted(path):
    """Counters, peaks, segments, retries and OOMs at the labelled moments."""
    recording = read_card(path)
    settings = AllocatorSettings.from_torch(recording.settings, RELEASE)
    limit = (
        2_550_524_805 if workload_name(path) == "gc" else None
    )  # set_per_process_memory_fraction(0.03)
    prediction = Prediction(
        Layout.empty(),
        recording.events,
        settings,
        RELEASE,
        Assumptions(
            total_bytes=LIKELY_TOTAL,
            limit=limit,
            emptied=emptied_by_user(recording),
            pools=pools_of(recording),
        ),
    )
    found = []

    def look(allocator):
        stats = allocator.memory_stats()
        found.append(
            {
                **{
                    name: stats[f"{name}_bytes"]["all"]["current"]
                    for name in ("allocated", "active", "requested", "reserved", "inactive_split")
                },
                "peak_allocated": stats["allocated_bytes"]["all"]["peak"],
                "peak_reserved": stats["reserved_bytes"]["all"]["peak"],
                "num_alloc_retries": stats["num_alloc_retries"],
                "num_ooms": stats["num_ooms"],
                "segments": stats["segment"]["all"]["current"],
            }
        )
        allocator.reset_peak_stats()

    marks = marks_of(path)
    places = [np.searchsorted(recording.events.t_ns, m["t_us"] * 1000, "right") for m in marks]
    wanted = {}
    for mark, place in zip(marks, places, strict=True):
        wanted[int(place)] = mark  # of two marks without an event between them the last one
    assert prediction.run(dict.fromkeys(wanted, look)) is None
    for mark, values in zip(wanted.values(), found, strict=True):
        expected = {name: mark[name] for name in values}
        if places.count(places[marks.index(mark)]) > 1:
            for name in ("peak_allocated", "peak_reserved"):
                expected.pop(name), values.pop(name)
        assert values == expected, mark["label"]


@pytest.mark.parametrize("path", [*TRACES, *SNAPSHOTS], ids=workload_name)
def test_following_gives_the_curves_that_torch_counted(path):
    recording = read_card(path)
    settings = AllocatorSettings.from_torch(recording.settings, RELEASE)
    found = reconstruct(Layout.empty(), recording.events, settings)
    assert found.notes == ()
    readings = [(r.position, r.values) for r in recording.readings]
    if path in SNAPSHOTS:
        times = recording.events.t_ns
        readings = [
            (int(np.searchsorted(times, m["t_us"] * 1000, "right")), m) for m in marks_of(path)
        ]
    assert readings
    before = 0
    for at, values in readings:
        for name in COUNTERS:
            assert getattr(found, name)[at] == values[name], (at, name)
        for name in ("allocated", "reserved"):
            assert getattr(found, name)[before : at + 1].max() == values[f"peak_{name}"]
        before = at
    assert_same_blocks(found, recording)


def assert_same_blocks(found, recording):
    """Compare the live blocks with the recorded layout."""
    blocks = recording.end.blocks
    blocks = blocks[blocks.state == BlockState.ALLOCATED]
    rows = np.flatnonzero(found.allocations.freed == len(recording.events))
    rows = rows[np.argsort(found.allocations.addr[rows])]
    assert found.allocations.addr[rows].tolist() == blocks.addr.tolist()
    assert found.allocations.block[rows].tolist() == blocks.size.tolist()
    assert found.allocations.requested[rows].tolist() == blocks.requested.tolist()


@pytest.mark.parametrize("path", SNAPSHOTS, ids=workload_name)
def test_a_recording_that_began_late_is_followed_from_its_end(path):
    recording = read_card(path)
    settings = AllocatorSettings.from_torch(recording.settings, RELEASE)
    events = recording.events
    whole = reconstruct(Layout.empty(), events, settings)
    assert len(undo_with_notes(recording.end, events, settings)[0].segments) == 0
    for part in range(1, 10):
        cut = len(events) * part // 10
        start, notes = undo_with_notes(recording.end, events[cut:], settings)
        found = reconstruct(start, events[cut:], settings)
        unsure = sum(int(note.split()[0]) for note in notes) << 20
        for name in CURVES:
            off = np.abs(getattr(found, name) - getattr(whole, name)[cut:]).max()
            assert off <= unsure, (cut, name)


@pytest.mark.parametrize("name", ["expandable", "train_resnet50", "streams", "oom"])
def test_the_model_goes_on_from_a_layout_in_the_middle(name):
    """With addresses as the order of ties, nothing that a layout lacks matters."""
    recording = read_card(RECORDINGS / "snapshots" / f"{name}.pickle.xz")
    settings = AllocatorSettings.from_torch(recording.settings, RELEASE)
    events = recording.events
    cut = int(np.flatnonzero(events.action == Action.ALLOC)[len(events) // 6])
    middle = []
    emptied = emptied_by_user(recording)
    assumptions = Assumptions(total_bytes=LIKELY_TOTAL, emptied=emptied)
    first = Prediction(Layout.empty(), events, settings, RELEASE, assumptions)
    assert first.run({cut: lambda allocator: middle.append(allocator.layout())}) is None
    assumptions = Assumptions(total_bytes=LIKELY_TOTAL, emptied={row - cut for row in emptied})
    second = Prediction(middle[0], events[cut:], settings, RELEASE, assumptions)
    assert second.run() is None
    assert layout_difference(second.allocator.layout(), first.allocator.layout()) is None
    assert second.allocator.active == first.allocator.active


def test_the_wrong_release_is_found_out():
    """Ties are broken otherwise in 2.12: the model must part from the recording."""
    result = replay(RECORDINGS / "traces" / "resnet50_b32_sgdm.json.xz", release="2.12.0")
    assert not result.exact
    assert result.first_difference.event > 0


@pytest.mark.parametrize("release", ["2.12.0", "2.13.0"])
def test_the_order_of_equal_blocks_from_before_is_learned(release):
    """Segments made in another order than that of their addresses: a layout does not say so."""

    class Downwards(SimulatedDriver):
        def malloc(self, size):
            self.used += size
            return 0x7F00_0000_0000 - self.used

    rows = []
    allocator = CachingAllocator(total_bytes=GIB, release=release, driver=Downwards(GIB))
    old = [allocator.malloc(30 * MIB) for _ in range(4)]
    for addr in old:
        allocator.free(addr)
    start = allocator.layout()
    allocator.emit = lambda action, *rest: rows.append((int(action), *rest))
    kept = [allocator.malloc(30 * MIB) for _ in range(3)]
    allocator.free(kept[0])
    allocator.malloc(29 * MIB + 1)
    assumptions = Assumptions(total_bytes=GIB)
    events = events_of(rows)
    prediction = Prediction(start, events, allocator.settings, release, assumptions)
    assert prediction.run() is None
    assert prediction.order.learned > 0
    assert layout_difference(allocator.layout(), prediction.allocator.layout()) is None


@pytest.mark.parametrize("name", ["gpt2_b4s512_adamw", "resnet50_b32_sgdm_expandable"])
def test_a_saved_session_is_replayed_like_its_trace(name, tmp_path):
    session = session_of(load(name))
    path = save_session(session, tmp_path / "saved.nbmem")
    result = replay(path)
    assert result.exact, result.text()
    assert result.release == "2.11.0"
    trace = replay(RECORDINGS / "traces" / f"{name}.json.xz")
    assert result.peak_allocated == trace.recorded_peak_allocated
    assert result.recorded_peak_reserved == trace.recorded_peak_reserved
