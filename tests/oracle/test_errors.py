"""Errors of the virtual card and of CUDA's code are counted by agreement."""

from tests.oracle import errors


def test_what_both_raise_is_counted_by_kind_and_by_words():
    real = {"a": "RuntimeError: x", "b": "IndexError: y", "c": "runs", "d": "ValueError: z"}
    here = {"a": "RuntimeError: x", "b": "IndexError: other", "c": "TypeError: w", "d": "runs"}
    found = errors.counts(real, here)
    assert errors.row("H100", found) == "| H100 | 4 | 3 | 2 | 1 | 1 |"


def test_a_list_that_cannot_be_made_is_an_answer():
    def listed():
        yield 1
        raise NotImplementedError("none here")

    assert [*errors._listed(listed)] == [1, "not made: NotImplementedError: none here"]
