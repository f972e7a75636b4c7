"""Private pools of graphs and MemPools are not releasable cache."""

import gc

import pytest
import torch

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.api.freeing import cache
from nbmem.core.session.categories import Category
from nbmem.report.exploration import RELEASABLE

MIB = 1 << 20
SEGMENT = 20 * MIB


@pytest.fixture(autouse=True, params=["", "expandable_segments:True"])
def card(request):
    with virtual.activated("T4", conf=request.param):
        yield


def capture_graph(size=12 * MIB):
    """Capture a graph whose memory is free once its result is gone."""
    x = torch.ones(size // 4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x * 2
    return graph


def bytes_in_pools():
    torch.cuda.synchronize()
    return sum(s["total_size"] for s in torch.cuda.memory_snapshot() if any(s["segment_pool_id"]))


def test_a_graphs_pool_is_kept_while_it_can_be_replayed(tmp_path):
    with nbmem.trace("t", namespace={}) as t:
        graph = capture_graph()
        kept = bytes_in_pools()
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
        capture_graph()
        kept = bytes_in_pools()
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
        graph = capture_graph()
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


def pool_notes(t):
    return [note for note in t.report().notes if "private pools" in note]


def test_a_note_names_the_users_of_private_pools(tmp_path):
    with nbmem.trace("t", namespace=(names := {})) as t:
        names["step"] = capture_graph()
        names["mine"] = pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            names["kept"] = torch.ones(3 * MIB, device="cuda")
    held = bytes_in_pools()
    (note,) = pool_notes(t)
    assert note.startswith(f"{held / MIB:.1f} MiB of the reserved bytes at the end are in private")
    assert "of a CUDA graph (step)" in note
    assert "of a MemPool (mine)" in note
    assert f"{sum(s['active_size'] for s in pools_now()) / MIB:.1f} MiB of them in use" in note
    (again,) = report_of(reopened(t, tmp_path)).notes[-1:]
    assert again == note


def pools_now():
    return [s for s in torch.cuda.memory_snapshot() if any(s["segment_pool_id"])]


def test_graphs_that_share_a_pool_are_counted_and_one_without_a_name_has_none():
    with nbmem.trace("t", namespace={}) as t:
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        x = torch.ones(MIB, device="cuda")
        with torch.cuda.graph(first):
            x * 2
        with torch.cuda.graph(second, pool=first.pool()):
            x * 3
    (note,) = pool_notes(t)
    assert "of 2 CUDA graphs. What" in note


def test_an_unowned_pool_is_noted_and_without_pools_there_is_no_note():
    with nbmem.trace("t", namespace={}) as t:
        capture_graph()
    assert "of nobody any more" in pool_notes(t)[0]
    with nbmem.trace("t", namespace={}) as t:
        torch.cuda.empty_cache()
        torch.ones(MIB, device="cuda")
    assert pool_notes(t) == []
