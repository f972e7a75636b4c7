"""Isolate failing parts: leave each out alone, with a note of the reason.

Parts are omitted by the code that combines them, never by the part itself. So a caller of a view
from Python gets its exceptions, and so do the tests of views. A report that lacks a part is not
cached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.runtime.warning_filter import suppress_warnings

logger = logging.getLogger("nbmem")

Made = TypeVar("Made")
Instead = TypeVar("Instead")

_LONGEST = 200
"""Characters of an exception in a note: some contain the rejected data."""


class Faults:
    """Runs parts of nbmem and records those that were left out.

    A part that raises loses only itself. Exhausted memory and too deep recursion also count as
    faults. An interrupt is the user's and propagates.
    """

    def __init__(self) -> None:
        self._found: dict[str, list[str]] = {}

    def part(self, what: str, make: Callable[[], Made], instead: Instead) -> Made | Instead:
        """Run one part and return its result, or a replacement if it fails.

        Args:
            what: Its name, as a sentence begins with it: "The interactive view".
            make: Creates it.
            instead: The replacement if that fails.
        """
        try:
            with suppress_warnings():
                return make()
        except Exception as err:  # noqa: BLE001 - any exception loses only this part
            reraise_if_from_signal(err)
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
        """One note for each distinct error, in order of first occurrence."""
        return tuple(
            f"{_joined(parts)} {'were' if _are_several(parts) else 'was'} left out: {error}. "
            "The figures are not affected; please report it with the session's file (%nbmem save)."
            for error, parts in self._found.items()
        )


class Unguarded(Faults):
    """A variant of Faults that lets every exception through.

    Callers of views from Python get the exceptions themselves.
    """

    def part(self, what: str, make: Callable[[], Made], instead: Instead) -> Made | Instead:  # noqa: ARG002 - as in Faults
        """Run one part and let its exceptions propagate."""
        return make()


UNGUARDED = Unguarded()


def error_of(err: BaseException) -> str:
    """Return an exception's repr for a note, cut to 200 characters.

    An exception whose repr() fails is shown by its type's name.
    """
    try:
        text = "".join(c if c.isprintable() else " " for c in repr(err))
    except BaseException:  # noqa: BLE001 - its repr() may be any code, and may even exit
        return type(err).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _are_several(parts: Sequence[str]) -> bool:
    """Return whether `were` follows these names.

    It does after "The phases", and not after "The history of the cells".
    """
    noun = parts[0].partition(" of ")[0].partition(" with ")[0]
    return len(parts) > 1 or (noun.endswith("s") and "_" not in noun)


def _joined(parts: Sequence[str]) -> str:
    """Join names: `The picture, the phases and the tips`.

    Inside a sentence a name begins with a lowercase letter.
    """
    first, *others = parts
    if not others:
        return first
    *middle, last = (name[:1].lower() + name[1:] for name in others)
    return f"{', '.join([first, *middle])} and {last}"
