"""Suggest the known name that a mistyped one is most like."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path

MOST_FILES = 2_000
"""Names of a folder that are compared with a mistyped one."""


def suggest(word: str, known: Iterable[str], written: str = "{}", *, likeness: float = 0.6) -> str:
    """Return "Did you mean T4? " for a word like a known one, else "".

    A name that begins with the word comes first.

    Args:
        word: What was typed; its case does not count.
        known: The names there are.
        written: How a name is written in the sentence, as in "`%nbmem {}`".
        likeness: The least share of letters that both have in order, as difflib counts it.
    """
    import difflib  # only once something is mistyped

    by_case = {name.casefold(): name for name in known}
    begun = [name for name in by_case if word and name.startswith(word.casefold())]
    near = begun or difflib.get_close_matches(word.casefold(), by_case, n=1, cutoff=likeness)
    return f"Did you mean {written.format(by_case[near[0]])}? " if near else ""


def suggest_or_list(word: str, known: Iterable[str], written: str = "{}", *, lister: str) -> str:
    """Suggest the known name that a word is like, or list all of them.

    Args:
        word: What was typed.
        known: The names there are.
        written: As for `suggest`.
        lister: What lists them, as in "`%nbmem help`", should the suggestion be wrong.
    """
    names = list(known)
    meant = suggest(word, names, written)
    return f"{meant}{lister} lists all." if meant else f"There are: {', '.join(names)}."


def suggest_path(path: str | os.PathLike[str], *, folder: bool = False) -> str:
    """Suggest the file or folder that a mistyped path is most like.

    The sentence is "Did you mean run.nbmem?", or "Check the path." where none is like it.

    Args:
        path: What was not found.
        folder: A folder is looked for, and no file.
    """
    typed = Path(path)
    try:
        with os.scandir(typed.expanduser().parent) as entries:
            some = itertools.islice(entries, MOST_FILES)
            known = sorted(one.name for one in some if one.is_dir() is folder)
    except (OSError, RuntimeError):  # no such folder either, or no home
        known = []
    meant = suggest(typed.name, (name for name in known if not name.startswith(".")))
    if not meant:
        return "Check the path."
    name = meant.removeprefix("Did you mean ").removesuffix("? ")
    return f"Did you mean {typed.with_name(name)}?"
