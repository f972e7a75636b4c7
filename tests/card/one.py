"""One part in a process of its own: `python -m tests.card.one PART FILE --seconds 60`.

Ends with 0 if the part is complete, with 3 if its time was over.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from tests.card.parts import part
from tests.card.results import Writer, head, read
from tests.oracle.record import said

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.card.parts import Case

OUT_OF_TIME = 3


def fill(path: Path, about: dict[str, object], cases: Iterable[Case], until: float) -> bool:
    """Run the cases that the file lacks; whether there is none left.

    Args:
        path: The part's file.
        about: Its head, if it has none.
        cases: All of the part's.
        until: `time.monotonic()` from which on no case begins.
    """
    known = read(path)
    if known.complete:
        return True
    writer = Writer(path, about)
    for name, call in cases:
        if not known.lacks(name):
            continue
        if time.monotonic() >= until:
            return False
        writer.begin(name)
        try:
            found = call()
        except Exception as err:  # noqa: BLE001 - what a case raises on this card is its finding
            found = said(err)
        writer.case(name, found)
        gc.collect()
    writer.finish()
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--cases", type=int, help="no more than these")
    parser.add_argument("--virtual", metavar="CARD", help="on this virtual card, to compare")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    warnings.filterwarnings("ignore")
    if options.virtual:
        from nbmem import virtual

        virtual.activate(options.virtual)
    cases = itertools.islice(part(options.part).cases(), options.cases)
    done = fill(options.out, head(), cases, until)
    os._exit(0 if done else OUT_OF_TIME)  # libraries may hang when they take themselves apart


if __name__ == "__main__":
    main()
