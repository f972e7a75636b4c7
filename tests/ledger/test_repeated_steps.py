"""Repeated steps of a loop share facts; other steps do not."""

from types import SimpleNamespace

import numpy as np

from nbmem.core.session.spans import Span
from nbmem.report.ledger.gradients import _matched
from nbmem.report.ledger.phase_map import PhaseMap
from nbmem.report.ledger.repeated_steps import find_repeats, select_outliving_results


def loop(*phases):
    """Phases of (name, step, events), one after another."""
    spans, first = [Span(kind="cell", name="c", t0_ns=0, t1_ns=1, first=(0,), last=(99,))], 0
    for name, step, events in phases:
        last = first + events
        spans.append(
            Span(
                kind="phase",
                name=name,
                step=step,
                parent=0,
                t0_ns=first,
                t1_ns=last,
                first=(first,),
                last=(last,),
            )
        )
        first = last
    return PhaseMap(spans, 0)


def repeats_of(sizes, born_in, phases, within=None, counts=None):
    n = len(sizes)
    return find_repeats(
        _Sizes(sizes),
        np.array(born_in, np.int64),
        phases,
        np.zeros(n, bool) if within is None else np.array(within, bool),
        np.ones(n, bool) if counts is None else np.array(counts, bool),
    ).tolist()


class _Sizes:
    def __init__(self, sizes):
        self.requested = np.array(sizes, np.int64)

    def __len__(self):
        return len(self.requested)


def test_a_forward_is_like_one_that_takes_the_same_and_may_end_early():
    phases = loop(*(("forward", i, 3) for i in range(4)))
    sizes = [3, 4, 5, 3, 4, 3, 9, 3, 4, 5]
    born_in = [0, 0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert repeats_of(sizes, born_in, phases) == [0, 1, 2, 0, 1, 5, 6, 0, 1, 2]


def test_any_other_phase_is_like_one_that_takes_all_the_same():
    phases = loop(("input", 0, 2), ("optimizer", 0, 2), ("input", 1, 2), ("input", 2, 2))
    assert repeats_of([3, 4, 3, 4, 3, 4, 3], [0, 0, 1, 1, 2, 2, 3], phases) == [0, 1, 2, 3, 0, 1, 6]


def test_what_two_unlike_calls_are_given_is_not_alike_for_its_size():
    """A GAN's noise and its picture: here each, of 3 bytes, before a call of its own."""
    picture, noise = (("input", 0, 1), ("forward", 0, 2)), (("input", 0, 1), ("forward", 0, 1))
    phases = loop(*picture, *noise, *picture, *noise)
    sizes, born_in = [3, 5, 6, 3, 9, 3, 5, 6, 3, 9], [0, 1, 1, 2, 3, 4, 5, 5, 6, 7]
    assert repeats_of(sizes, born_in, phases) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_short_lived_blocks_say_nothing_of_lasting_ones():
    phases = loop(("input", 0, 2), ("input", 1, 2))
    found = repeats_of([3, 4, 3, 4], [0, 0, 1, 1], phases, within=[False, True, False, False])
    assert found == [0, 1, 0, 3]


def test_what_is_taken_once_in_a_process_does_not_count():
    phases = loop(("forward", 0, 3), ("forward", 1, 2))
    found = repeats_of([3, 8, 4, 3, 4], [0, 0, 0, 1, 1], phases, counts=[1, 0, 1, 1, 1])
    assert found == [0, 1, 2, 0, 2]


def test_what_outlives_the_next_pass_is_kept_and_the_last_pass_follows_it():
    phases = loop(*(("forward", i, 10) for i in range(3)))
    allocations = SimpleNamespace(
        allocated_at=np.array([1, 2, 11, 12, 21, 22]), freed=np.array([15, 30, 25, 30, 30, 30])
    )
    born_in = np.array([0, 0, 1, 1, 2, 2], np.int64)
    found = select_outliving_results(allocations, born_in, phases, np.array([0, 1, 0, 1, 0, 1]), 30)
    assert found.tolist() == [False, True, False, True, False, True]
    alone = select_outliving_results(allocations, born_in, phases, np.arange(6), 30)
    assert alone.tolist() == [False, True, False, True, False, False]


def test_what_a_loop_computes_behind_its_backward_is_kept_if_the_next_one_does_not_free_it():
    phases = loop(*(("backward", i, 10) for i in range(3)))
    allocations = SimpleNamespace(allocated_at=np.array([1, 2, 11]), freed=np.array([9, 30, 12]))
    born_in = np.array([0, 0, 1], np.int64)
    found = select_outliving_results(allocations, born_in, phases, np.arange(3), 30, of="backward")
    assert found.tolist() == [False, True, False]


def test_gradients_are_matched_only_where_as_many_were_made_as_listed():
    none = np.zeros(4, bool)
    of = ["gradient of m.1 (8,) float32", "gradient of m.0 (8,) float32"]
    assert _matched([4, 7], of, np.zeros(8, bool)) == {4: of[0], 7: of[1]}
    assert _matched([1], of, none) == {1: "gradient in m.* (8,) float32"}
    assert _matched([1, 2, 3], of, none) == dict.fromkeys((1, 2, 3), "backward of m.*")
    assert _matched([1, 2], of, np.array([0, 1, 0, 0], bool)) == {2: "gradient in m.* (8,) float32"}
    summed = [of[0], of[1].replace(" of ", " in ")]
    assert _matched([1, 2], summed, none) == {1: of[0], 2: of[1]}
