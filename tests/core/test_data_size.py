"""Sizes of plain data, and the cost of measuring them."""

import gc
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest

from nbmem.core.runtime import data_size
from nbmem.core.runtime.data_size import held_bytes
from nbmem.core.session.categories import Category


@dataclass(frozen=True, slots=True)
class Row:
    """One of many."""

    name: str
    sizes: tuple[int, ...]


def rows(count):
    return tuple(Row(f"row {n}", (10**6 + n, 10**7 + n)) for n in range(count))


@pytest.mark.parametrize(
    "make",
    [
        lambda: rows(20),
        lambda: rows(5_000),
        lambda: {f"key {n}": (n + 1000, n + 9000) for n in range(3_000)},
        lambda: [np.arange(10_000), {"a": tuple(f"{n}" * 99 for n in range(4))}],
    ],
    ids=["few", "many", "dictionary", "arrays"],
)
def test_what_data_counts_is_what_it_holds(make):
    gc.collect()
    tracemalloc.start()
    try:
        data = make()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes(data) == pytest.approx(held, rel=0.2)


def test_an_object_counts_once_and_what_is_shared_counts_for_nobody():
    text = "a text" * 100
    assert held_bytes([text, text]) < 1.5 * held_bytes([text])
    assert held_bytes([Category.WEIGHTS, Row]) == held_bytes([None] * 2) - held_bytes(None)


def test_what_is_no_data_is_not_looked_into():
    class Live:
        def __init__(self):
            self.all_there_is = [0] * 100_000
            self.nbytes = "many"

    assert held_bytes([Live()]) < 1_000


def test_an_array_that_is_a_view_counts_what_it_shows():
    whole = np.zeros(1_000_000, np.int64)
    assert held_bytes(whole[:1_000]) == pytest.approx(8_000, abs=500)


def test_the_work_does_not_grow_with_the_length(monkeypatch):
    def calls(count):
        asked = []
        measure = data_size._bytes
        monkeypatch.setattr(data_size, "_bytes", lambda *all_: (asked.append(1), measure(*all_))[1])
        held_bytes(rows(count))
        monkeypatch.setattr(data_size, "_bytes", measure)
        return len(asked)

    assert calls(100_000) <= 2 * calls(1_000)
