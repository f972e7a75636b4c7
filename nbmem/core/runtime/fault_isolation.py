"""Parts that fail: each is left out alone, and one note says what and why.

A part is left out by the code that puts the parts together, never by itself: a caller of a view
from Python meets its faults, and so do the tests of views. A report that something was left out of
is not remembered.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from nbmem.core.runtime.interrupts import let_pass
from nbmem.core.runtime.warning_filter import suppress_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger("nbmem")

Made = TypeVar("Made")
Instead = TypeVar("Instead")

_LONGEST = 200
"""Characters of an exception in a note: some carry the data that they did not like."""


class Faults:
    """Runs parts of nbmem's own, and keeps what was left out.

    A part that raises costs itself: memory that ran out and recursion that went too deep count as
    faults, too. An interrupt is the user's and passes.
    """

    def __init__(self) -> None:
        self._found: dict[str, list[str]] = {}

    def part(self, what: str, make: Callable[[], Made], instead: Instead) -> Made | Instead:
        """Make one part.

        Args:
            what: Its name, as a sentence begins with it: "The interactive view".
            make: Makes it.
            instead: What stands in its place where that fails.
        """
        try:
            with suppress_warnings():
                return make()
        except Exception as err:  # noqa: BLE001 - whatever it is, it costs this part and no other
            let_pass(err)
            self.leave_out(what, err)
            return instead

    def leave_out(self, what: str, err: Exception) -> None:
        """Note that a part was left out; parts that fail alike share a note."""
        logger.debug("%s was left out", what, exc_info=err)
        found = self._found.setdefault(error_of(err), [])
        if what not in found:
            found.append(what)

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each error, in the order of the first parts that met them."""
        return tuple(
            f"{_joined(parts)} {'were' if _are_several(parts) else 'was'} left out: {error}. "
            "The figures are not affected; please report it with the session's file (%nbmem save)."
            for error, parts in self._found.items()
        )


class Unguarded(Faults):
    """Lets every fault through: for a caller of views from Python, who wants to know."""

    def part(self, what: str, make: Callable[[], Made], instead: Instead) -> Made | Instead:  # noqa: ARG002 - as in Faults
        """Make one part, and raise what it raises."""
        return make()


UNGUARDED = Unguarded()


def error_of(err: BaseException) -> str:
    """An exception as a note shows it; an exception may fail to show itself, too."""
    try:
        text = "".join(c if c.isprintable() else " " for c in repr(err))
    except BaseException:  # noqa: BLE001 - its repr() is somebody's code, and may even exit
        return type(err).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _are_several(parts: Sequence[str]) -> bool:
    """Whether `were` follows: of "The phases", not of "The history of the cells"."""
    noun = parts[0].partition(" of ")[0].partition(" with ")[0]
    return len(parts) > 1 or (noun.endswith("s") and "_" not in noun)


def _joined(parts: Sequence[str]) -> str:
    """`The picture, the phases and the tips`: names begin small inside a sentence."""
    first, *others = parts
    if not others:
        return first
    *middle, last = (name[:1].lower() + name[1:] for name in others)
    return f"{', '.join([first, *middle])} and {last}"
