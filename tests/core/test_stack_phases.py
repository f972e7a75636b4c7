"""Phases of torch's own snapshots, from the stacks of their events."""

import pickle
from pathlib import Path

import pytest

from nbmem.core.errors import FileFormatError
from nbmem.core.files.snapshot_session import session_of_snapshot
from nbmem.core.session.events import Action, Events
from nbmem.core.session.stack_phases import phases_of
from nbmem.report.analysis.source_lines import users_line

SNAPSHOTS = Path(__file__).parents[1] / "recordings" / "snapshots"
STEP = ["forward", "backward", "optimizer"]


def phases(name):
    spans = session_of_snapshot(SNAPSHOTS / f"{name}.pickle.xz").spans
    return [(span.name, span.step) for span in spans if span.kind == "phase"]


def test_nine_steps_of_changing_length_are_nine_steps():
    found = [phase for phase in phases("variable_lengths") if phase[0] != "input"]
    assert found == [("load", None), *((name, step) for step in range(9) for name in STEP)]


def test_forwards_without_a_backward_are_told_apart_by_their_call():
    each = [(name, step) for step in range(4) for name in ("input", "forward")]
    assert phases("loss_accumulation") == [("load", None), *each]


@pytest.mark.parametrize("name", ["fragmentation", "reserved_unused", "retry"])
def test_a_program_without_modules_has_no_phases(name):
    assert phases(name) == []


def test_phases_lie_side_by_side_and_cover_every_event():
    session = session_of_snapshot(SNAPSHOTS / "train_gpt2_amp.pickle.xz")
    spans = [span for span in session.spans if span.kind == "phase"]
    edges = [(span.first[0], span.last[0]) for span in spans]
    assert [first for first, _ in edges[1:]] == [last for _, last in edges[:-1]]
    assert (edges[0][0], edges[-1][1]) == (0, len(session.devices[0].events))
    assert Action.SEGMENT_FREE not in session.devices[0].events.action[: edges[0][1]]


def test_no_events_have_no_phases():
    assert phases_of(Events.empty(), ()) == ()


# --- programs told by made-up stacks, as torch's default (`stacks="all"`) takes them


def frame(file, line, name):
    return {"filename": file, "line": line, "name": name}


MALLOC = [
    frame("??", 0, "torch::unwind::unwind()"),
    frame("CUDACachingAllocator.cpp", 0, "c10::cuda::CUDACachingAllocator::Native::malloc"),
    frame("", 0, "at::detail::empty_generic"),
]
EVALUATE = [frame("??", 0, "_PyEval_EvalFrameDefault"), frame("/src/ceval.c", 811, "call")]
ENGINE = [
    frame("??", 0, "torch::autograd::Engine::thread_main"),
    frame("thread48.o", 0, "execute_native_thread_routine"),
]
MODULE = "/site-packages/torch/nn/modules/module.py"
CALL = [frame(MODULE, 1750, "_call_impl"), frame(MODULE, 1739, "_wrapped_call_impl")]
OPTIMIZER = frame("/site-packages/torch/optim/optimizer.py", 493, "wrapper")
FUNCTION = frame("/site-packages/torch/autograd/function.py", 311, "apply")
RUN = frame("/site-packages/torch/autograd/graph.py", 841, "_engine_run_backward")


def stack_at_line(line):
    return [*EVALUATE, frame("/home/x/train.py", line, "<module>"), frame("??", 0, "_start")]


LOAD = [*MALLOC, frame(MODULE, 944, "_apply"), *stack_at_line(3)]
BATCH = [*MALLOC, *stack_at_line(10)]
FORWARD = [*MALLOC, frame("/home/x/net.py", 5, "forward"), *EVALUATE, *CALL, *stack_at_line(11)]
LOSS = [*MALLOC, *stack_at_line(12)]
SEED = [*MALLOC, RUN, *stack_at_line(13)]
GRADIENT = [*MALLOC, *ENGINE]
RECOMPUTED = [*MALLOC, frame("/home/x/net.py", 5, "forward"), *CALL, FUNCTION, *ENGINE]
CLIPPED = [
    *MALLOC,
    frame("/site-packages/torch/nn/utils/clip_grad.py", 9, "clip"),
    *stack_at_line(14),
]


def stepping(line):
    return [*MALLOC, frame("/home/x/adam.py", 7, "step"), OPTIMIZER, *stack_at_line(line)]


STEPPING = stepping(15)
LOOP = [BATCH, FORWARD, LOSS, SEED, GRADIENT, RECOMPUTED, GRADIENT, CLIPPED, STEPPING]


def snapshot(tmp_path, stacks, cards=1):
    """Write a snapshot in which each stack allocates 512 bytes more."""
    base, size = 1 << 40, 2 << 20
    blocks = [
        {"address": base + 512 * i, "size": 512, "state": "active_allocated", "frames": stack}
        for i, stack in enumerate(stacks)
    ]
    free = size - 512 * len(stacks)
    blocks.append({"address": base + size - free, "size": free, "state": "inactive"})
    segment = {"device": cards - 1, "address": base, "total_size": size, "blocks": blocks}
    trace = [{"action": "segment_alloc", "addr": base, "size": size, "time_us": 0}]
    trace += [
        {"action": "alloc", "addr": base + 512 * i, "size": 512, "frames": s, "time_us": 1 + i}
        for i, s in enumerate(stacks)
    ]
    other = {**segment, "device": 0, "address": 1 << 41, "total_size": 512, "blocks": []}
    segments = [segment] if cards == 1 else [other, segment]
    path = tmp_path / "snapshot.pickle"
    traces = [[] for _ in range(cards - 1)] + [trace]
    raw = {"segments": segments, "device_traces": traces}
    path.write_bytes(pickle.dumps(raw, protocol=4))
    return path


def phase_text(session):
    phases = [s for s in session.spans if s.kind == "phase"]
    return " ".join(
        f"{s.name}{'' if s.step is None else s.step}[{s.last[-1] - s.first[-1]}]" for s in phases
    )


def test_the_engines_thread_is_known_by_its_stack_of_cpp_frames(tmp_path):
    session = session_of_snapshot(snapshot(tmp_path, [LOAD, *LOOP, *LOOP]))
    assert phase_text(session) == (
        "load[2] input0[1] forward0[2] backward0[4] optimizer0[2] "
        "input1[1] forward1[2] backward1[4] optimizer1[2]"
    )


def test_phases_are_told_from_a_windows_stacks_too(tmp_path):
    def windows(stack):
        prefix = "C:\\Python\\Lib"
        return [
            {**one, "filename": prefix + one["filename"].replace("/", "\\")}
            if one["filename"].startswith("/site-packages")
            else one
            for one in stack
        ]

    stacks = [LOAD, *LOOP, *LOOP]
    here = session_of_snapshot(snapshot(tmp_path, stacks))
    there = session_of_snapshot(snapshot(tmp_path, [windows(stack) for stack in stacks]))
    assert phase_text(there) == phase_text(here)


def test_no_line_of_cpp_is_the_users(tmp_path):
    session = session_of_snapshot(snapshot(tmp_path, [LOAD, *LOOP]))
    lines = {users_line(stack) for stack in session.stacks}
    assert lines == {
        "train.py:3", "train.py:10", "net.py:5 in forward", "train.py:12", "train.py:13",
        "train.py:14", "adam.py:7 in step",
    }  # fmt: skip
    stacks = session.devices[0].events.stack
    assert stacks[[6, 8]].tolist() == [-1, -1]  # C++ alone


def test_two_optimizers_are_told_apart_by_the_lines_that_call_them(tmp_path):
    half = [FORWARD, LOSS, SEED, GRADIENT]
    gan = [BATCH, *half, stepping(15), *half, stepping(25)]
    assert phase_text(session_of_snapshot(snapshot(tmp_path, [LOAD, *gan, *gan]))) == (
        "load[2] input0[1] forward0[2] backward0[2] optimizer0[1] forward0[2] backward0[2] "
        "optimizer0[1] input1[1] forward1[2] backward1[2] optimizer1[1] forward1[2] backward1[2] "
        "optimizer1[1]"
    )


def test_phases_are_those_of_the_card_that_held_the_most(tmp_path):
    session = session_of_snapshot(snapshot(tmp_path, [LOAD, *LOOP, *LOOP], cards=2))
    assert [device.info.index for device in session.devices] == [0, 1]
    assert phase_text(session).startswith("load[2] input0[1] forward0[2]")
    assert all(span.last[0] == 0 for span in session.spans)  # nothing happened on the other


def test_a_file_whose_events_and_segments_contradict_each_other_is_refused(tmp_path):
    path = snapshot(tmp_path, [LOAD, *LOOP])
    raw = pickle.loads(path.read_bytes())
    raw["device_traces"][0].append({"action": "free_completed", "addr": 1, "size": 1 << 34})
    path.write_bytes(pickle.dumps(raw, protocol=4))
    with pytest.raises(FileFormatError) as refused:
        session_of_snapshot(path)
    assert str(refused.value) == (
        f"{path} is not a snapshot as torch writes it: by it card 0 had 16.00 GiB in use before "
        "event 0, where torch held only 0 B from the driver. Its events and its segments do "
        "not belong together: it was cut, put together or made up."
    )
