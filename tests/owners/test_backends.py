"""Where torch hands out another allocator's memory one sentence says what is not there."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="there is no allocator without torch")

import nbmem.api as nbmem  # noqa: E402
from nbmem import virtual  # noqa: E402


def refuse(*_args, **_options):
    """Answer as torch's C++ does, since 2.0."""
    raise RuntimeError("CUDAPluggableAllocator does not yet support this.")


@pytest.mark.parametrize("backend", ["pluggable", "cudaMallocAsync"])
def test_a_cell_runs_and_one_note_says_why_there_is_nothing(monkeypatch, backend):
    with virtual.activated("T4"):
        torch.zeros(1, device="cuda")
        monkeypatch.setattr(torch._C, "_cuda_getAllocatorBackend", lambda: backend)
        monkeypatch.setattr(torch._C, "_cuda_record_memory_history", refuse)
        monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", refuse)
        if backend == "pluggable":
            monkeypatch.setattr(torch._C, "_cuda_memoryStats", refuse)
        with nbmem.trace("cell", namespace={}) as t:
            torch.nn.Linear(8, 8).cuda()(torch.zeros(1, 8, device="cuda")).sum().backward()
        (note,) = t.session.notes
        assert note.startswith(
            f"torch takes its memory from another allocator here ({backend}), and keeps no history"
        )
        assert t.session.devices == ()
