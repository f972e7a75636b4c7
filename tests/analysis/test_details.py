"""What leads from the peak to other moments adds up to the ledger there, to the byte."""

import numpy as np
import pytest

from nbmem.analysis import build_report
from nbmem.analysis.details import LIVES
from nbmem.analysis.pool import pool_at
from nbmem.core.categories import LIVE
from nbmem.ledger.books import Books
from tests.recorded import load, session_of

RUNS = ("gpt2_b4s512_adamw", "resnet50_b32_sgdm_expandable", "cudagraph_mlp_b512_sgd")


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    session = session_of(load(request.param))
    return Books(session), build_report(session)


def test_lives_and_the_rest_add_up_at_every_moment(run):
    books, report = run
    found = report.details
    assert len(found.lives) <= LIVES
    born = np.array([life.born for life in found.lives])
    freed = np.array([life.freed for life in found.lives])
    size = np.array([life.requested for life in found.lives])
    category = np.array([life.category for life in found.lives])
    for row, position in enumerate(report.timeline.event.tolist()):
        here = (born < position) & (freed >= position)
        assert found.live[row].sum() == len(books.live(position))
        for kind in LIVE:
            told = here & (category == kind)
            rest = int(report.timeline.held[row, kind]) - int(size[told].sum())
            others = int(found.live[row, kind]) - int(told.sum())
            assert others >= 0
            assert rest >= 0
            assert others or not rest  # what all are told of has no rest


def test_the_largest_at_the_peak_and_at_the_end_are_told(run):
    books, report = run
    told = {(life.born, life.requested) for life in report.details.lives}
    for position in (report.peak.at.event, books.events):
        rows = books.live(position)
        a = books.followed.allocations
        largest = rows[np.argsort(-a.requested[rows], kind="stable")][:50]
        assert {(int(a.born[row]), int(a.requested[row])) for row in largest} <= told


@pytest.mark.parametrize("part", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_the_pool_is_tiled_and_says_what_the_counters_say(run, part):
    books, _ = run
    position = int(part * books.events)
    pool, f = pool_at(books, position), books.followed
    for segment in pool.segments:
        ends = [piece.offset + piece.size for piece in segment.pieces]
        assert [piece.offset for piece in segment.pieces] == [0, *ends[:-1]]
        assert ends[-1] == segment.size
    if not pool.others:
        states = dict.fromkeys(("used", "pending", "releasable", "stuck"), 0)
        for segment in pool.segments:
            for piece in segment.pieces:
                states[piece.state] += piece.size
        assert states["used"] + states["pending"] == f.active[position] == pool.used
        assert states["releasable"] == f.releasable[position] == pool.releasable
        assert states["stuck"] == pool.stuck
    whole = sum(segment.size for segment in pool.segments) + pool.other_bytes
    assert whole == f.reserved[position] == pool.used + pool.releasable + pool.stuck
