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
    with virtual.activated("T4"), monkeypatch.context() as patch:
        torch.zeros(1, device="cuda")
        patch.setattr(torch._C, "_cuda_getAllocatorBackend", lambda: backend)
        patch.setattr(torch._C, "_cuda_record_memory_history", refuse)
        patch.setattr(torch._C, "_cuda_memorySnapshot", refuse)
        patch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", lambda _: refuse())
        if backend == "pluggable":
            patch.setattr(torch._C, "_cuda_memoryStats", refuse)
        with nbmem.trace("cell", namespace={}) as t:
            torch.nn.Linear(8, 8).cuda()(torch.zeros(1, 8, device="cuda")).sum().backward()
        (note,) = t.session.notes
        assert note.startswith(
            f"torch takes its memory from another allocator here ({backend}), and keeps no history"
        )
        assert t.session.devices == ()
