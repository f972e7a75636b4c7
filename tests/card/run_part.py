"""Run one part in its own process: `python -m tests.card.one PART FILE`.

Ends with 0 if the part is complete, with 3 if its time was over.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.card.parts import ALL, Case, Share, part
from tests.card.results import Writer, head, read_results
from tests.oracle.record import error_text

OUT_OF_TIME = 3


def fill(
    path: Path, about: dict[str, object], cases: Iterable[Case], until: float, workers: int = 1
) -> bool:
    """Run the missing cases of a file; return whether none is left.

    Args:
        path: The part's file.
        about: Its head, if it has none.
        cases: All of the part's.
        until: `time.monotonic()` from which on no case begins.
        workers: Cases beside each other, where each is a process of its own.
    """
    known = read_results(path)
    if known.complete:
        return True
    writer = Writer(path, about)

    def run(case: Case) -> bool:
        name, call = case
        if time.monotonic() >= until:
            return False
        writer.begin(name)
        try:
            found = call()
        except Exception as err:  # noqa: BLE001 - what a case raises on this card is its finding
            found = error_text(err)
        writer.case(name, found)
        gc.collect()
        return True

    missing = (case for case in cases if known.lacks(case[0]))
    if workers == 1:
        done = all(map(run, missing))
    else:
        with ThreadPoolExecutor(workers) as pool:
            done = all(list(pool.map(run, missing)))
    if done:
        writer.finish()
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--share", type=Share.read, default=ALL, help="2/5: the second of five")
    parser.add_argument("--cases", type=int, help="no more than these")
    parser.add_argument("--workers", type=int, default=1, help="for parts of many processes")
    parser.add_argument("--virtual", metavar="CARD", help="on this virtual card, to compare")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    warnings.filterwarnings("ignore")
    if options.virtual:
        from nbmem import virtual

        virtual.activate(options.virtual)
    chosen = part(options.part)
    cases = options.share.of_cases(chosen.cases(), options.cases)
    done = fill(options.out, head(), cases, until, options.workers if chosen.beside else 1)
    os._exit(0 if done else OUT_OF_TIME)  # libraries may hang when they take themselves apart


if __name__ == "__main__":
    main()
