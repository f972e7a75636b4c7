"""Memory history of a virtual card in torch's snapshots."""

import inspect
import json
import pickle
import sys

import pytest
import torch


def test_history_and_snapshot(gpu):
    record = torch.cuda.memory._record_memory_history
    record(context="all", stacks="python", max_entries=100)
    x = torch.ones(1000, device="cuda")
    del x
    y = torch.ones(10, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert actions == ["segment_alloc", "alloc", "free_requested", "free_completed", "alloc"]
    entry = snapshot["device_traces"][0][1]
    assert entry["size"] == 4000
    assert entry["frames"][0]["name"] == "test_history_and_snapshot"
    assert entry["frames"][0]["filename"] == __file__
    block = next(b for b in snapshot["segments"][0]["blocks"] if b["state"] == "active_allocated")
    assert block["address"] == y.data_ptr()
    assert block["frames"][0]["name"] == "test_history_and_snapshot"
    assert torch.cuda.memory._snapshot()["device_traces"][0][-1]["action"] == "snapshot"
    record(enabled=None)
    torch.ones(10, device="cuda")
    known = inspect.signature(torch.cuda.memory._record_memory_history_impl).parameters
    if "skip_actions" not in known:
        return  # new in torch 2.11
    record(max_entries=3, context=None, clear_history=True, skip_actions=["free_requested"])
    for _ in range(10):
        torch.ones(10, device="cuda")
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert [e["action"] for e in trace] == ["free_completed", "alloc", "free_completed"]
    assert "frames" not in trace[0]


@pytest.mark.skipif(
    not hasattr(torch.cuda.memory, "_set_memory_metadata"),
    reason="labels are newer than this torch",
)
def test_backward_has_the_stack_and_the_label_of_the_engines_thread(gpu):
    torch.cuda.memory._record_memory_history(context="all", stacks="python")
    torch.cuda.memory._set_memory_metadata("step 1")
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    (x @ x).sum().backward()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    labels = {entry["user_metadata"] for entry in trace if entry["action"] == "alloc"}
    assert labels == {"step 1", ""}
    assert all(not e["frames"] for e in trace if e["user_metadata"] == "")


def test_a_free_has_the_stack_of_the_line_that_let_go(gpu):
    def let_go():
        held.clear()

    held = [torch.ones(10, device="cuda")]
    where = {}
    for context in ("alloc", "all", "alloc"):
        torch.cuda.memory._record_memory_history(context=context)
        held.append(torch.ones(10, device="cuda"))
        x = torch.ones(10, device="cuda", requires_grad=True)
        let_go()
        loss = x.exp().sum()
        torch.cuda.memory._record_memory_history(context=context, clear_history=True)
        loss.backward()  # exp's result dies in the engine's thread, which has no stack
        held.append(torch.ones(10, device="cuda"))
        let_go()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        where[context] = [
            [frame["name"] for frame in e["frames"][:1]]
            for e in trace
            if e["action"] == "free_requested" and "frames" in e
        ]
    assert where["alloc"] == []
    assert [] in where["all"]
    assert where["all"][-1] == ["let_go"]
    # backward() itself lets go of the gradient that it began with.
    assert set(map(tuple, where["all"])) == {(), ("backward",), ("let_go",)}


def test_a_dump_can_be_read_back(gpu, tmp_path):
    torch.cuda.memory._record_memory_history()
    x = torch.ones(10, device="cuda")
    torch.cuda.memory._dump_snapshot(str(tmp_path / "dump.pickle"))
    read = pickle.loads((tmp_path / "dump.pickle").read_bytes())
    assert read["segments"][0]["active_size"] == 512
    del x


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x * x


def test_a_line_of_torchscript_is_on_the_stack(gpu):
    x = torch.ones(10, device="cuda")
    torch.cuda.memory._record_memory_history(stacks="python")
    scripted(x)
    entry = torch.cuda.memory._snapshot()["device_traces"][0][0]
    frames = [(frame["name"], frame["filename"]) for frame in entry["frames"][:2]]
    assert frames == [
        ("scripted", __file__),
        ("test_a_line_of_torchscript_is_on_the_stack", __file__),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="torch unwinds C++ on Linux alone")
@pytest.mark.parametrize("stacks", ["all", "python"])
def test_frames_of_cpp_are_there_if_they_were_asked_for(gpu, stacks):
    torch.cuda.memory._record_memory_history(stacks=stacks)
    x = torch.rand(64, 64, device="cuda", requires_grad=True)
    y = (x @ x).sum()
    y.backward()
    snapshot = torch.cuda.memory._snapshot()
    (block,) = [
        block
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["address"] == x.data_ptr() and block["state"] == "active_allocated"
    ]
    assert ("at::_ops::rand::call" in json.dumps(block)) is (stacks == "all")
    traced = [entry["frames"] for entry in snapshot["device_traces"][0]]
    engines = [f for f in traced if f and "Engine::thread_main" in f[-1]["name"]]
    assert bool(engines) is (stacks == "all"), "the engine's thread has no Python"
    text = json.dumps(snapshot)
    assert "test_frames_of_cpp" in text
    assert "PythonFallback" not in text
    assert "nbmem/virtual" not in text
