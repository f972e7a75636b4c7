"""Which tips come first where a function made the peak."""

from types import SimpleNamespace

import pytest

from nbmem.report.model import Command, Finding
from nbmem.report.tips.engine import Advice
from nbmem.report.tips.function_advice import names_cause, with_function

MIB = 1 << 20
PEAK = 1000 * MIB


def tip(rule, saved, title="", command=None):
    return Finding(
        rule=rule,
        title=title or f"a tip of {rule}",
        evidence="",
        low=saved * MIB,
        high=saved * MIB,
        ground="exact",
        code=None,
        command=command,
    )


def joined(ended, before, phase="forward", callers=()):
    at = SimpleNamespace(phase=phase)
    report = SimpleNamespace(peak=SimpleNamespace(allocated=PEAK, at=at))
    advice = with_function(
        Advice(findings=tuple(ended)), Advice(findings=tuple(before)), "train", report, callers
    )
    return [(one.rule, one.title) for one in advice.findings]


@pytest.mark.parametrize("left", ["cached_memory", "reference_cycle"])
def test_what_the_return_left_comes_behind_what_the_function_held(left):
    found = joined([tip(left, 900)], [tip("graph_kept", 200)])
    assert [rule for rule, _ in found] == ["graph_kept", left]


def test_garbage_that_the_function_left_is_told_once():
    found = joined([tip("reference_cycle", 300)], [tip("reference_cycle", 300, "through `x`")])
    assert found == [("reference_cycle", "In train(): through `x`")]


def test_garbage_comes_before_a_small_tip():
    found = joined([tip("reference_cycle", 900)], [tip("graph_kept", 20)])
    assert [rule for rule, _ in found] == ["reference_cycle", "graph_kept"]


def test_what_stays_is_sorted_with_what_the_function_held():
    found = joined([tip("two_models", 300)], [tip("graph_kept", 200)])
    assert [rule for rule, _ in found] == ["two_models", "graph_kept"]


def test_a_tip_names_the_function_once():
    titles = ["`x` grows", "`x` of train() grows", "at file.py:3, line 3"]
    found = joined([], [tip("graph_kept", 200, title) for title in titles])
    expected = ["In train(): `x` grows", *titles[1:]]
    assert sorted(title for _, title in found) == sorted(expected)


def test_a_command_is_for_what_is_still_there():
    command = Command(name="free", arguments=("x",))
    both = [tip("two_models", 200, "`del x`", command)]
    assert joined(both, both) == [("two_models", "`del x`")]
    assert joined([], both) == [("two_models", "In train(): `del x`")]


def test_what_grew_is_told_by_its_bytes_at_the_peak_if_it_has_a_name():
    peak, end = (tip("grows_each_step", 300, f"`x` {at}") for at in ("held at the peak", "holds"))
    assert joined([peak], [end]) == [("grows_each_step", "In train(): `x` held at the peak")]
    nameless = tip("grows_each_step", 300, "A list of tensors")
    assert joined([nameless], [end]) == [("grows_each_step", "In train(): `x` holds")]


def test_a_checkpoint_that_made_the_peak_while_it_was_loaded():
    ended, before = [tip("checkpoint_on_gpu", 200)], [tip("checkpoint_kept", 200)]
    assert [rule for rule, _ in joined(ended, before, "load")] == ["checkpoint_on_gpu"]
    assert [rule for rule, _ in joined(ended, before)] == ["checkpoint_kept"]


@pytest.mark.parametrize(
    ("title", "function"),
    [
        ("`kept` grows", "train"),
        ("`history` grows", "main"),
        ("`args.model` is a copy of `kept`", "main"),
        ("A list grows beside `history`", "main"),
        ("A list of tensors grows", "train"),
    ],
)
def test_a_tip_names_the_function_whose_variable_it_is_about(title, function):
    callers = [{"function": "main", "variables": ["history", "args"]}]
    found = joined([], [tip("graph_kept", 200, title)], callers=callers)
    assert found == [("graph_kept", f"In {function}(): {title}")]


@pytest.mark.parametrize(
    ("rule", "title", "expected"),
    [
        ("graph_kept", "", True),
        ("grows_each_step", "`x` grows", True),
        ("grows_each_step", "A list of tensors grows", False),
        ("grows_each_step", "`something of Net` grows", False),
        ("cached_memory", "", False),
        ("reference_cycle", "", False),
    ],
)
def test_what_names_a_cause_by_itself(rule, title, expected):
    assert names_cause(Advice(findings=(tip(rule, 200, title),))) is expected
    assert not names_cause(Advice(findings=()))
