"""Value search on synthetic curves, against brute force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbmem.estimates.questions.search.value_search import Search


def search(verdict, need, start=1, **options):
    runs = []

    def test(value):
        runs.append(value)
        return verdict(value), need(value)

    found = Search(test=test, room=options.pop("room", 1000), **options)
    found.run(start)
    return found, runs


@given(
    fixed=st.integers(0, 900),
    each=st.integers(1, 300),
    start=st.integers(1, 600),
    high=st.one_of(st.none(), st.integers(1, 2000)),
)
def test_the_search_equals_brute_force(fixed, each, start, high):
    def need(value):
        return fixed + each * value

    found, runs = search(
        lambda v: "fits" if need(v) <= 1000 else "full", need, start=start, high=high
    )
    fitting = [v for v in range(1, min(high or 1001, 1001) + 1) if need(v) <= 1000]
    assert found.best == (max(fitting) if fitting else None)
    assert len(runs) == len(set(runs)) <= 40


@pytest.mark.parametrize("slack", [1.0, 1.06, 1.3])
def test_the_boundary_may_lie_beyond_where_the_line_meets_the_room(slack):
    # torch gives cached segments back before it runs out: more fits than the line says.
    edge = int(777 * slack)
    found, runs = search(lambda v: "fits" if v <= edge else "full", lambda v: v, start=32, room=777)
    assert (found.best, found.limit) == (edge, edge + 1)
    assert len(runs) <= 22


def test_the_search_continues_to_where_torch_cannot_free_enough():
    edge = 1000
    found, runs = search(
        lambda v: "fits" if v <= edge else "full", lambda v: v, start=32, room=777,
        least=lambda v: v * 7 // 10,
    )  # fmt: skip
    assert (found.best, found.limit) == (edge, edge + 1)
    assert len(runs) <= 14


def test_a_formula_leads_down_from_what_does_not_fit():
    found, runs = search(
        lambda v: "fits" if v <= 700 else "full", lambda v: v, start=6000, room=700, first_guess=690
    )
    assert (found.best, runs[1]) == (700, 690)


def test_a_range_bounds_it_on_both_sides():
    found, runs = search(lambda _v: "fits", lambda v: v, start=32, low=8, high=64, room=1000)
    assert (found.best, found.limit) == (64, None)
    assert all(8 <= v <= 64 for v in runs)
    found, runs = search(lambda _v: "full", lambda v: v + 5000, start=32, low=8, high=64)
    assert (found.best, found.limit) == (None, 8)


def test_steps_are_kept():
    found, runs = search(lambda v: "fits" if v <= 101 else "full", lambda v: v * 9.9, start=16,
                         low=8, step=8)  # fmt: skip
    assert (found.best, found.limit) == (96, 104)
    assert all(v % 8 == 0 for v in runs)


def test_where_only_multiples_run_it_looks_among_them():
    def verdict(value):
        return "fails" if value % 8 else "fits" if value <= 104 else "full"

    found, _ = search(verdict, lambda v: 10 * v, start=32, low=8)
    assert (found.best, found.widened) == (104, True)


def test_a_variable_that_changes_nothing_ends_the_search():
    found, runs = search(lambda _v: "fits", lambda _v: 500, start=4)
    assert found.flat
    assert len(runs) <= 6
