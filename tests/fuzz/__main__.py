"""Open hostile files in limited processes and print how each ended."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.mutations import KINDS, hostile_file
from tests.fuzz.run import run, table
from tests.fuzz.worker import draw


def main() -> int:
    """Print the table and every failure; 0 if there is none."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--files", type=int, default=1_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--only", choices=sorted(KINDS), help="files of one kind alone")
    parser.add_argument("--one", type=int, metavar="N", help="open file N here, with its traceback")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="with --one: write it there")
    options = parser.parse_args()
    if options.one is not None:
        path = options.keep or Path("hostile.pickle")
        path.write_bytes(hostile_file(options.one, options.only)[1])
        draw(path, options.one)
        return 0
    outcomes = run(range(options.first, options.first + options.files), only=options.only)
    print(table(outcomes))
    return 1 if any(one.how not in {"opened", "refused"} for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
