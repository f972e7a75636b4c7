"""Write each text once, and refer to it by its index."""

from __future__ import annotations

from nbmem.views.markup import clipped, one_line

LONGEST = 240
"""Characters of a text that are retained: a name's length is not limited."""


class Texts:
    """A growing list of distinct texts.

    Attributes:
        all: The texts, in the order in which they came.
    """

    def __init__(self) -> None:
        self.all: list[str] = []
        self._index: dict[str, int] = {}

    def index(self, text: str | None) -> int:
        """Return the index of a text, added if it is new; -1 for None."""
        if text is None:
            return -1
        clean = clipped(one_line(text), LONGEST)
        if clean not in self._index:
            self._index[clean] = len(self.all)
            self.all.append(clean)
        return self._index[clean]
