"""Ledgers where torch uses another allocator."""

import sys
from types import SimpleNamespace

import pytest
import torch

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.allocator.recordings.replay import replay
from nbmem.api.freeing import cache
from nbmem.capture import torch_cuda
from nbmem.capture.frameworks import cupy as cupys
from nbmem.capture.frameworks import rmm
from nbmem.core.errors import UsageError
from nbmem.core.session.categories import Category
from nbmem.views.text import render_text
from tests.frameworks.conftest import AsyncPool

C = Category
MIB = 1 << 20
SIDE = 512
WEIGHTS = 4 * SIDE * SIDE


def refuse(*_args, **_options):
    """Raise as torch's C++ does, since 2.0."""
    raise RuntimeError("CUDAPluggableAllocator does not yet support this.")


@pytest.fixture
def chosen():
    """Choose another allocator by name until the card is left."""

    def choose(backend):
        border = torch._C
        monkeypatch.setattr(border, "_cuda_getAllocatorBackend", lambda: backend)
        monkeypatch.setattr(border, "_cuda_record_memory_history", refuse)
        monkeypatch.setattr(border, "_cuda_memorySnapshot", refuse)
        monkeypatch.setattr(border, "_cuda_attach_out_of_memory_observer", refuse, raising=False)
        monkeypatch.setattr(border, "_cuda_hasPrimaryContext", lambda _: True, raising=False)
        if backend == "pluggable":
            monkeypatch.setattr(border, "_cuda_memoryStats", refuse)

    with virtual.activated("T4"), pytest.MonkeyPatch.context() as monkeypatch:
        torch.zeros(1, device="cuda")
        monkeypatch.setattr(nbmem, "virtual_card", lambda: None)  # it is taken for a real one
        yield choose


def trace_step():
    """Trace a step that leaves weights, gradients and momentum."""
    names = {}
    with nbmem.trace("cell", namespace=names) as t:
        names["net"] = net = torch.nn.Linear(SIDE, SIDE, bias=False).cuda()
        names["optimizer"] = optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
        net(torch.zeros(8, SIDE, device="cuda")).sum().backward()
        optimizer.step()
    return t


@pytest.mark.parametrize("backend", ["pluggable", "cudaMallocAsync"])
def test_the_ledger_is_built_from_objects_and_counters(chosen, backend, tmp_path):
    chosen(backend)
    t = trace_step()
    (note,) = t.session.notes
    assert note.startswith(f"torch takes its memory from another allocator here ({backend}) and")
    report = t.report()
    for row in report.phases:
        row.ledger_at_end.check()
    end = report.ledger_at_end
    end.check()
    assert (report.device.kind, report.device.allocator) == ("cuda", backend)
    assert end[C.WEIGHTS] == end[C.GRADIENTS] == WEIGHTS
    # Without the driver's figures nothing would stand beside them.
    assert end.process == end.reserved + end[C.CONTEXT]
    assert end[C.CONTEXT] > 0
    if backend == "pluggable":
        assert end.reserved == end.allocated == 2 * WEIGHTS + end[C.OPTIMIZER_STATE]
        assert end[C.UNKNOWN] == 0
    else:
        assert (end.allocated, end.reserved) == (
            torch.cuda.memory_allocated(),
            torch.cuda.memory_reserved(),
        )
    assert "= card" in render_text(report)
    saved = t.save(tmp_path / "session")
    assert nbmem.open(saved).report().device == report.device
    with pytest.raises(UsageError, match="keeps no history"):
        replay(saved)


def test_bytes_known_from_counters_alone_are_no_activations(chosen):
    chosen("cudaMallocAsync")
    report = trace_step().report()
    (forward,) = [row for row in report.phases if row.name == "forward"]
    # cuBLAS took its workspace there; a counter does not say so.
    assert forward.ledger_at_end[C.UNKNOWN] >= 8 * MIB
    assert forward.ledger_at_end[C.ACTIVATIONS] < MIB
    assert report.ledger_at_end[C.TEMPORARIES] == 0


def managed_rmm(monkeypatch, put_in, *, managed):
    """RMM as torch's allocator, with 40 MiB of which 24 are in use."""
    cuda_mr = type("ManagedMemoryResource" if managed else "CudaMemoryResource", (), {})()
    pool = type(
        "PoolMemoryResource",
        (),
        {"pool_size": lambda _: 40 * MIB, "get_upstream": lambda _: cuda_mr},
    )()
    counting = type(
        "TrackingResourceAdaptor",
        (),
        {"get_allocated_bytes": lambda _: 24 * MIB, "get_upstream": lambda _: pool},
    )()
    allocator = object()
    put_in(
        rmm={},
        rmm__mr={"get_per_device_resource": lambda _: counting},
        rmm__allocators__torch={"rmm_torch_allocator": SimpleNamespace(_allocator=allocator)},
    )
    monkeypatch.setattr(torch._C, "_cuda_getAllocator", lambda: allocator, raising=False)


def test_where_rmm_hands_it_out_its_figures_are_torchs(chosen, monkeypatch, put_in):
    chosen("pluggable")
    managed_rmm(monkeypatch, put_in, managed=False)
    assert rmm.torch_bytes(0) == (24 * MIB, 40 * MIB)
    assert rmm.read(0) is None  # or each byte would count twice
    end = trace_step().report().ledger_at_end
    end.check()
    assert (end.allocated, end.reserved) == (24 * MIB, 40 * MIB)
    assert end[C.CACHED_RELEASABLE] + end[C.CACHED_STUCK] == 16 * MIB
    assert end[C.UNKNOWN] == 24 * MIB - 2 * WEIGHTS - end[C.OPTIMIZER_STATE]
    assert end.owners == ()


def test_managed_memory_may_be_larger_than_the_card(chosen, monkeypatch, put_in):
    chosen("pluggable")
    managed_rmm(monkeypatch, put_in, managed=True)
    monkeypatch.setattr(rmm, "torch_bytes", lambda _: (24 * MIB, 40 << 30))
    t = trace_step()
    end = t.report().ledger_at_end
    end.check()
    assert end.reserved == 40 << 30
    assert sum("managed memory" in note for note in t.session.notes) == 1


def test_rmm_that_is_not_torchs_is_an_owner(chosen, monkeypatch, put_in):
    chosen("pluggable")
    managed_rmm(monkeypatch, put_in, managed=False)
    monkeypatch.setattr(torch._C, "_cuda_getAllocator", object, raising=False)
    assert rmm.torch_bytes(0) is None
    assert rmm.read(0).held == 40 * MIB


def test_a_broken_rmm_costs_its_figures_alone(chosen, monkeypatch, put_in):
    chosen("pluggable")
    managed_rmm(monkeypatch, put_in, managed=False)
    monkeypatch.setattr(sys.modules["rmm.mr"], "get_per_device_resource", lambda _: 1 / 0)
    assert trace_step().report().ledger_at_end[C.WEIGHTS] == WEIGHTS


def test_cudas_pool_counts_once_where_cupy_takes_from_it_too(chosen, cupy, monkeypatch):
    chosen("cudaMallocAsync")
    pool = AsyncPool(96 * MIB, 32 * MIB)
    monkeypatch.setattr(sys.modules["cupy.cuda"], "get_allocator", lambda: pool.malloc)
    cupy.held = cupy.used = 2 * MIB  # its default pool is its own
    reading = cupys.read(0)
    assert (reading.held, reading.used) == (2 * MIB, 2 * MIB)


def test_what_can_be_freed_of_it(chosen):
    chosen("cudaMallocAsync")
    counters = torch_cuda.read_counters(0)
    assert cache.releasable() == counters.reserved - counters.allocated > 0
    chosen("pluggable")
    assert cache.releasable() == 0
