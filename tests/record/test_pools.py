"""Private pools: what a graph or a MemPool keeps is not the cache that empty_cache() gives back."""

import gc

import pytest

torch = pytest.importorskip("torch", reason="the recorder watches torch")

import nbmem.api as nbmem  # noqa: E402
from nbmem import virtual  # noqa: E402
from nbmem.core.categories import Category  # noqa: E402
from nbmem.details import RELEASABLE  # noqa: E402
from nbmem.freeing import cache  # noqa: E402

MIB = 1 << 20
SEGMENT = 20 * MIB


@pytest.fixture(autouse=True, params=["", "expandable_segments:True"])
def card(request):
    with virtual.activated("T4", conf=request.param):
        yield


def captured(size=12 * MIB):
    """A graph whose memory is all free once its result is gone, but for the replay's use."""
    x = torch.ones(size // 4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x * 2
    return graph


def in_pools():
    torch.cuda.synchronize()
    return sum(s["total_size"] for s in torch.cuda.memory_snapshot() if any(s["segment_pool_id"]))


def test_a_graphs_pool_is_kept_while_it_can_be_replayed(tmp_path):
    with nbmem.trace("t", namespace={}) as t:
        graph = captured()
        kept = in_pools()
    assert kept >= 12 * MIB
    for session in (t.session, reopened(t, tmp_path)):
        ledger = report_of(session).ledger_at_end
        before = torch.cuda.memory_reserved()
        assert ledger[Category.CACHED_STUCK] >= kept
        predicted = ledger[Category.CACHED_RELEASABLE]
    assert cache.releasable() == predicted
    torch.cuda.empty_cache()
    assert before - torch.cuda.memory_reserved() == predicted
    assert graph.pool() != (0, 0)


def test_the_pool_of_a_graph_that_is_gone_is_given_back():
    with nbmem.trace("t", namespace={}) as t:
        captured()
        kept = in_pools()
    assert kept >= 12 * MIB
    ledger = t.report().ledger_at_end
    gc.collect()
    before = torch.cuda.memory_reserved()
    assert cache.releasable() == ledger[Category.CACHED_RELEASABLE] >= kept
    torch.cuda.empty_cache()
    assert before - torch.cuda.memory_reserved() == ledger[Category.CACHED_RELEASABLE]


def test_a_mempool_is_kept_while_it_lives():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        torch.ones(3 * MIB, device="cuda")
    assert not cache.releasable()
    del pool
    assert cache.releasable() == torch.cuda.memory_reserved()


def test_the_map_of_the_pool_shows_none_of_it_as_free_to_go():
    with nbmem.trace("t", namespace={}) as t:
        graph = captured()
    details = t.report().details
    private = [n for n, one in enumerate(details.pool.segments) if one.pool]
    pieces = [
        piece
        for n in private
        for _, tiling in details.pool.states[n]
        if tiling >= 0
        for piece in details.pool.tilings[tiling].tolist()
    ]
    assert pieces
    assert not [piece for piece in pieces if piece[1] == RELEASABLE]
    assert graph.pool() != (0, 0)


def reopened(trace, folder):
    trace.save(folder / "t.nbmem")
    return nbmem.open(folder / "t.nbmem").session


def report_of(session):
    trace = nbmem.Trace("t")
    trace.session = session
    return trace.report()
