"""Parts that are measured on a card, the most valuable first."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

Case = tuple[str, "Callable[[], Any]"]


class Part(NamedTuple):
    """One file of results: `cases()` of its module.

    Attributes:
        name: The module in tests/card, and the file.
        seconds: The most that it may take of the quarter of an hour.
        what: For whoever waits.
        beside: Each case is a process of its own, so that several can run at once.
    """

    name: str
    seconds: float
    what: str
    beside: bool = False

    def cases(self) -> Iterator[Case]:
        """Yield the part's cases: a unique name and a function to call."""
        found: Iterator[Case] = importlib.import_module(f"tests.card.{self.name}").cases()
        return found


PARTS = (
    Part("context", 60, "memory of the context and of each library"),
    Part("workspaces", 180, "workspaces of convolutions and recurrent layers"),
    Part("models", 120, "a training step of many models, while time is left"),
    Part("balance", 30, "the books against nvidia-smi"),
    Part("overhead", 120, "what tracing costs a step"),
    Part("readings", 30, "what a live reading costs"),
    Part("atlas", 90, "what operators of everyday ask for"),
    Part("real_card_tests", 120, "tests/gpu"),
    Part("samples", 150, "what torch's samples of its operators ask for, while time is left"),
)
NAMED = (Part("compiled", 600, "compiled steps of training, and the same eagerly", beside=True),)
"""Beyond the quarter of an hour: only run by their names."""


class Share(NamedTuple):
    """Every `of`th case from `number` on, for processes beside each other; a file of its own."""

    number: int
    of: int

    @classmethod
    def read(cls, text: str) -> Share:
        """2/5 is the second of five.

        Raises:
            ValueError: It is none.
        """
        number, of = map(int, text.split("/"))
        if not 1 <= number <= of:
            raise ValueError(text)
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def of_cases(self, cases: Iterable[Any], most: int | None = None) -> Iterator[Any]:
        """Yield this share of the first `most` cases, or of all."""
        return itertools.islice(cases, self.number - 1, most, self.of)

    def file(self, part: str) -> str:
        """Return the name of this share's file."""
        return f"{part}.jsonl" if self.of == 1 else f"{part}.{self.number}of{self.of}.jsonl"


ALL = Share(1, 1)


def part(name: str) -> Part:
    """Return the part of that name."""
    return next(one for one in (*PARTS, *NAMED) if one.name == name)
