"""Allocations in a torch.cuda.MemPool."""

import threading

import pytest
import torch

from tests.virtual.allocation_history import bytes_by_pool

MIB = 1 << 20
FLOATS = MIB // 4
pytestmark = pytest.mark.skipif(not hasattr(torch.cuda, "MemPool"), reason="since torch 2.5")


def test_a_pool_takes_what_its_own_thread_allocates(gpu):
    pool, kept = torch.cuda.MemPool(), []

    def allocate():
        kept.append(torch.empty(5 * FLOATS, device="cuda"))

    with torch.cuda.use_mem_pool(pool):
        allocate()
        other = threading.Thread(target=allocate)
        other.start()
        other.join()
    assert bytes_by_pool("active_size") == {(0, 0): 5 * MIB, pool.id: 5 * MIB}


def test_a_pool_is_counted_by_who_has_it(gpu):
    pool = torch.cuda.MemPool()
    assert pool.use_count() == 1
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
    assert pool.use_count() == 1


def test_a_pool_that_does_not_split_never_does(gpu):
    try:
        pool = torch.cuda.MemPool(no_split=True)
    except TypeError:
        pytest.skip("since torch 2.9")
    kept = []
    for _ in range(3):
        with torch.cuda.use_mem_pool(pool):
            kept.append(torch.empty(4 * FLOATS, device="cuda"))
    blocks = [[b["size"] for b in s["blocks"]] for s in torch.cuda.memory_snapshot()]
    assert blocks == [[20 * MIB]] * 3


def test_what_a_checkpoint_freed_is_not_freed_again_by_its_tensor(gpu):
    get = getattr(torch._C, "_cuda_getCheckpointState", None)
    if get is None:
        pytest.skip("this torch has no checkpoints of pools")
    graph, later = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = torch.ones(512, device="cuda")
    state = get(0, graph.pool())
    with torch.cuda.graph(later, pool=graph.pool()):
        second = torch.ones(512, device="cuda")
    stale = second.untyped_storage()._cdata
    torch._C._cuda_setCheckpointPoolState(0, state, [stale], [])
    del second
    assert bytes_by_pool("active_size")[graph.pool()] == first.nbytes
