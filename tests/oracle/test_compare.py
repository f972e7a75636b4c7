"""Comparison of sequences, errors and refused cases."""

import json

import pytest

from tests.oracle.compare import (
    ABSENT,
    EQUAL,
    FREES,
    NEITHER,
    ONLY_ORACLE,
    ONLY_VIRTUAL,
    ORDER,
    SIZES,
    compared,
    kind_of,
    report,
    row,
)
from tests.oracle.record import is_selected, results

NO = "RuntimeError: no"


@pytest.mark.parametrize(
    ("here", "kind"),
    [
        ([4, 8, -8, -4], EQUAL),
        ([4, 8, -4, -8], FREES),
        ([8, 4, -8, -4], ORDER),
        ([4, -4], SIZES),
        ([4, 4, 8], SIZES),
        (NO, ONLY_ORACLE),
        (None, ABSENT),
    ],
)
def test_sequences_differ_in_frees_in_order_or_in_sizes(here, kind):
    assert kind_of([4, 8, -8, -4], here) == kind


def test_an_error_on_one_side_alone_is_a_kind_of_its_own():
    assert kind_of(NO, [4]) == ONLY_VIRTUAL
    assert kind_of(NO, "ValueError: other words") == NEITHER


@pytest.mark.parametrize(
    ("oracle", "here", "expected"),
    [
        ({"0": [4], "1": [8]}, {"0": [4], "1": [8]}, {"0": EQUAL, "1": EQUAL}),
        ({"0": [4], "1": NO}, {"0": [8], "1": NO}, {"0": SIZES, "1": NEITHER}),
        ({"0": [4]}, {}, {"0": ABSENT}),
        ({"0": [4]}, NO, {"0": ONLY_ORACLE}),
        (NO, NO, {"samples": NEITHER}),
    ],
)
def test_each_case_has_its_kind(oracle, here, expected):
    assert compared({"a": oracle}, {"a": here}) == {"a": expected}


def test_what_both_refuse_counts_nowhere():
    line = row("one", compared({"a": {"0": [4], "1": NO}}, {"a": {"0": [4], "1": NO}}))
    assert line == "| one | 1 of 1 | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 100.00% |"


def test_the_report_shows_the_worst_case_of_each_operator():
    oracle = {"a": {"0": [4]}, "b": {"0": [4], "1": [4], "2": [8, 4]}, "c": {"0": NO}}
    here = {"a": {"0": [4]}, "b": {"0": [4], "1": [8], "2": [4, 8]}, "c": {"0": []}}
    assert report(oracle, here) == [
        f"b | {SIZES} | 2 of 3 | 1", "    oracle  [4]", "    virtual [8]",
        f"c | {ONLY_VIRTUAL} | 1 of 1 | 0", f"    oracle  {NO}", "    virtual []",
    ]  # fmt: skip


def test_a_file_that_was_cut_off_is_read_up_to_there(tmp_path):
    path = tmp_path / "r.jsonl"
    lines = [{"asked": {"a": "did not end"}}, {"asked": {"a": {"0": [4]}}}]
    path.write_text("\n".join([*map(json.dumps, lines), '{"asked": {"b": {"0": [']))
    assert results(path) == {"a": {"0": [4]}}
    assert results(tmp_path / "none.jsonl") == {}


def test_an_operator_is_named_with_dots_or_as_the_database_has_it():
    assert is_selected("nn_functional_linear", ["nn.functional.linear"])
    assert is_selected("Adam fused=True", ["Adam fused=True"])
    assert not is_selected("nn_functional_linear", ["linear"])
