"""Callbacks for CUDA's initialization, and observers left behind."""

import pytest
import torch

import nbmem
from nbmem import virtual
from nbmem.capture.hooks import oom_observer
from nbmem.capture.torch_memory import cuda_initialization
from nbmem.capture.torch_memory.cuda_initialization import on_cuda_initialized

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def queue():
    """Provide torch's queue before CUDA's initialization."""
    if torch.cuda.is_initialized():
        pytest.skip("CUDA is initialized here")
    before = list(torch.cuda._queued_calls)
    yield torch.cuda._queued_calls
    assert torch.cuda._queued_calls == before
    assert not cuda_initialization._waiting


def initialize(queue):
    """Run the part of torch's initialization that concerns nbmem."""
    for call, _ in list(queue):
        if call.__module__.startswith("nbmem."):
            call()


def test_a_trace_leaves_nothing_queued(queue):
    before = list(queue)
    for _ in range(3):
        with nbmem.trace("one"), nbmem.trace("inner"):
            assert len(queue) == len(before) + 1
        assert queue == before


def test_one_call_is_queued_for_all_who_wait(queue):
    called, before = [], len(queue)
    cancels = [on_cuda_initialized(lambda name=name: called.append(name)) for name in "abc"]
    assert len(queue) == before + 1
    cancels[1]()
    initialize(queue)
    initialize(queue)
    assert called == ["a", "c"]
    for cancel in cancels:
        cancel()


def test_while_torch_goes_through_its_queue_nobody_waits_for_it(queue):
    called = []
    cancel = on_cuda_initialized(lambda: called.append(1))
    with torch.cuda._initialization_lock:
        cancel()
        initialize(queue)
    assert called == []
    on_cuda_initialized(list)()  # takes out what could not be taken out then


def test_one_observer_is_attached_for_the_process(queue, monkeypatch):
    attached = []

    def attach(observer):
        attached.append(observer)

    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", attach, raising=False)
    monkeypatch.setattr(oom_observer, "allocator_backend", lambda: "native")
    before = len(queue)
    for _ in range(3):
        oom_observer.listen([].append, {})()
    assert len(queue) == before
    stops = [oom_observer.listen([].append, {}) for _ in range(3)]
    assert len(queue) == before + 1
    initialize(queue)
    for stop in stops:
        stop()
    oom_observer.listen([].append, {})()
    assert attached == [oom_observer._refused]


def test_each_virtual_card_has_one_observer(queue):
    for _ in range(2):
        with virtual.activated("T4") as card:
            for _ in range(3):
                with nbmem.trace("one"):
                    torch.ones(3, device="cuda")
            assert card.oom_observers == [oom_observer._refused]
