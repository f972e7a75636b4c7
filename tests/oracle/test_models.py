"""Comparison of models, their operators and their errors."""

import pytest

from tests.oracle.compare import EQUAL, ONLY_ORACLE, SIZES
from tests.oracle.models import Finding, compared, differing_operators, lasting, report, row, rows

CONVOLUTION = "aten.convolution.default"


def answer(sizes, *, peaks=(100, 200), askers=None):
    named = [f"aten.{size}.default" for size in sizes if size > 0]
    return {"sizes": sizes, "peaks": list(peaks), "askers": askers or named}


def test_equal_sequences_are_equal():
    assert compared({"a": answer([4, -4])}, {"a": answer([4, -4])}) == {
        "a": Finding(EQUAL, allocated=True)
    }


def test_frees_between_two_requests_have_no_order():
    oracle, here = answer([4, 8, -4, -8, 4, -4]), answer([4, 8, -8, -4, 4, -4])
    assert compared({"a": oracle}, {"a": here})["a"].kind == EQUAL
    late = answer([4, 8, -4, 4, -8, -4])
    assert compared({"a": oracle}, {"a": late})["a"].kind != EQUAL


def test_the_operators_are_named_whose_requests_differ():
    oracle, here = answer([4, 8, 16]), answer([4, 9, 16, 32])
    assert list(differing_operators(oracle, here)) == [
        "aten.9.default [8] [9]",
        "aten.32.default [] [32]",
    ]


def test_what_is_asked_for_here_alone_belongs_to_the_operator_before():
    assert list(differing_operators(answer([4, 8, 16]), answer([4, 16]))) == [
        "aten.4.default [8] []"
    ]


def test_work_areas_of_convolutions_are_told_apart():
    here = answer([4, 400, 8], askers=["aten.mm.default", CONVOLUTION, "aten.mm.default"])
    found = compared({"a": answer([4, 8])}, {"a": here})["a"]
    assert found.kind == SIZES
    assert found.convolutions_alone
    assert not Finding(SIZES, allocated=True, askers=("aten.mm.default [] [4]",)).convolutions_alone


@pytest.mark.parametrize("side", ["RuntimeError: no", None])
def test_what_one_side_refuses_has_no_peak(side):
    found = compared({"a": answer([4])}, {"a": side} if side else {})
    assert found == ({"a": Finding(ONLY_ORACLE)} if side else {})


def test_the_row_counts_peaks_and_the_report_counts_operators():
    oracle = {"a": answer([4]), "b": answer([4], peaks=(100, 100)), "c": answer([4])}
    here = {
        "a": answer([4]),
        "b": answer([8], peaks=(104, 110)),
        "c": "ValueError: no",
    }
    line = row("one", compared(oracle, here))
    assert line == "| one | 3 | 1 | 0 | 1 | 1 | 1 (50.0%) | 5.00% | 1 |"
    lines = report(oracle, here)
    assert lines[:2] == ["b | sizes differ | False | +10.00%", "    aten.8.default [4] [8]"]
    assert lines[-1] == "1 aten.8.default"


def test_what_is_freed_at_once_is_left_out_of_what_lasts():
    assert lasting([4, 8, -8, 16, -4]) == [4, 16, -4]
    assert lasting([4, 8, 2, -2, -8]) == [4]
    found = compared({"a": answer([4, 8])}, {"a": answer([4, 400, -400, 8])})["a"]
    assert found.kind == SIZES
    assert found.lasting


def test_each_library_has_a_row_where_there_are_several():
    one = Finding(EQUAL, allocated=True)
    lines = list(rows("here", {"timm a": one, "timm b": one, "peft c": one}))
    assert [line.split(" | ")[:2] for line in lines] == [
        ["| here", "3"],
        ["| here, timm", "2"],
        ["| here, peft", "1"],
    ]
    assert len(list(rows("here", {"timm a": one}))) == 1
