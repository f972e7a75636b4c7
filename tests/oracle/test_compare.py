"""The verdict on an operator is the worst of its samples; who raises alone is told apart."""

import pytest

from tests.oracle.compare import (
    EQUAL,
    FREES,
    NEITHER,
    ONLY_ORACLE,
    ONLY_VIRTUAL,
    ORDER,
    SIZES,
    kind_of,
    report,
    verdict,
)


@pytest.mark.parametrize(
    ("here", "kind"),
    [
        ([4, 8, -8, -4], EQUAL),
        ([4, 8, -4, -8], FREES),
        ([8, 4, -8, -4], ORDER),
        ([4, -4], SIZES),
        ([4, 4, 8], SIZES),
    ],
)
def test_sequences_differ_in_frees_in_order_or_in_sizes(here, kind):
    assert kind_of([4, 8, -8, -4], here) == kind


@pytest.mark.parametrize(
    ("oracle", "here", "expected"),
    [
        ({"0": [4], "1": [8]}, {"0": [4], "1": [8]}, EQUAL),
        ({"0": [4, 8], "1": [8]}, {"0": [8, 4], "1": [4]}, SIZES),
        ({"0": [4]}, {}, SIZES),
        ({}, {}, EQUAL),
        ({"0": [4]}, "RuntimeError: no", ONLY_ORACLE),
        ("RuntimeError: no", {"0": [4]}, ONLY_VIRTUAL),
        ("RuntimeError: no", "RuntimeError: no", NEITHER),
    ],
)
def test_an_operator_is_as_good_as_its_worst_sample(oracle, here, expected):
    assert verdict(oracle, here) == expected


def test_the_report_counts_and_shows_the_first_difference():
    lines = report({"a": {"0": [4]}, "b": {"0": [4], "1": [4]}}, {"a": {"0": [4]}, "b": {"0": [4]}})
    assert lines[0].startswith("operators: 2; equal 1, frees differ 0, order differs 0, sizes d")
    assert lines[1].startswith("cases: 3; equal 2")
    assert lines[3:] == ["b | sizes differ in 1 of 2 | 1", "    oracle  [4]", "    virtual []"]


def test_who_runs_alone_is_shown_with_the_others_reason():
    lines = report({"a": {}, "b": "TypeError: x"}, {"a": "ValueError: y", "b": {}})
    assert lines[3:] == [f"a | {ONLY_ORACLE} | ValueError: y", f"b | {ONLY_VIRTUAL} | TypeError: x"]
