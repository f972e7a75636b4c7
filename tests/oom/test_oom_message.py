"""Wordings of torch's message, and errors in a chain of exceptions."""

import pytest

from nbmem.core.session.oom import is_oom_text, oom_in, read_message
from nbmem.core.units import GIB, MIB

NOW = (
    "CUDA out of memory. Tried to allocate 294.00 MiB. GPU 0 has a total capacity of 79.18 GiB of "
    "which 75.61 GiB is free. Including non-PyTorch memory, this process has 1.98 GiB memory in "
    "use. Process 802 has 1.57 GiB memory in use. 1.58 GiB allowed; Of the allocated memory 1.23 "
    "GiB is allocated by PyTorch, and 150.77 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True to avoid fragmentation."
)
GRAPHS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 14.75 GiB of "
    "which 512 bytes is free. Process 7 has 1.00 GiB memory in use. Process 8 has 2.00 GiB memory "
    "in use. Of the allocated memory 9.00 GiB is allocated by PyTorch, with 24.00 MiB allocated in "
    "private pools (e.g., CUDA Graphs), and 1.00 GiB is reserved by PyTorch but unallocated."
)
OLD = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total capacity; 14.56 GiB "
    "already allocated; 38.44 MiB free; 14.80 GiB reserved in total by PyTorch)"
)


def test_the_figures_of_todays_message():
    found = read_message(NOW)
    assert (found.device, found.wanted, found.free) == (0, 294 * MIB, round(75.61 * GIB))
    assert (found.total, found.process) == (round(79.18 * GIB), round(1.98 * GIB))
    assert (found.others, found.limit) == (round(1.57 * GIB), round(1.58 * GIB))
    assert found.reserved == round(1.23 * GIB) + round(150.77 * MIB)


def test_private_pools_several_processes_and_no_limit():
    found = read_message(GRAPHS)
    assert (found.device, found.free, found.others) == (1, 512, 3 * GIB)
    assert (found.allocated, found.reserved, found.limit) == (9 * GIB, 10 * GIB, None)


def test_the_older_message():
    found = read_message(OLD)
    assert (found.wanted, found.free) == (20 * MIB, round(38.44 * MIB))
    assert (found.allocated, found.reserved) == (round(14.56 * GIB), round(14.8 * GIB))


@pytest.mark.parametrize(
    "text",
    [
        "HIP out of memory. Tried to allocate 2.00 GiB.",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_other_wordings_of_out_of_memory(text):
    assert is_oom_text(text)
    assert read_message(text).total is None


def test_errors_of_host_memory_are_not_read():
    assert read_message("DefaultCPUAllocator: can't allocate memory: you tried to allocate") is None
    assert oom_in(MemoryError("out of memory")) is None
    assert oom_in(None) is None


def test_the_error_is_found_in_a_chain_of_exceptions():
    cause = RuntimeError(NOW)
    outer = ValueError("the batch is too big")
    outer.__cause__ = cause
    assert oom_in(outer) is cause
    context = KeyError("x")
    context.__context__ = outer
    context.__suppress_context__ = True
    assert oom_in(context) is cause
    assert oom_in(ExceptionGroup("two", [ValueError(), context])) is cause
    loop = ValueError()
    loop.__context__ = loop
    assert oom_in(loop) is None
