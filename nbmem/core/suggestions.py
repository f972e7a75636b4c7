"""Suggest the known name that a mistyped one is most like."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def suggest(word: str, known: Iterable[str], written: str = "{}") -> str:
    """Return "Did you mean T4? " for a word like a known one, else "".

    A name that begins with the word comes first.

    Args:
        word: What was typed; its case does not count.
        known: The names there are.
        written: How a name is written in the sentence, as in "`%nbmem {}`".
    """
    by_case = {name.casefold(): name for name in known}
    begun = [name for name in by_case if word and name.startswith(word.casefold())]
    near = begun or difflib.get_close_matches(word.casefold(), by_case, n=1)
    return f"Did you mean {written.format(by_case[near[0]])}? " if near else ""
