"""Play scenes and name what traces leave: `python -m tests.leaks`.

python -m tests.leaks cells                          # on the CPU
python -m tests.leaks cells --on T4 --only failing   # on a virtual card, with one cell
python -m tests.leaks reloads --rounds 30            # more of it
"""

from __future__ import annotations

import argparse
import sys

from tests.leaks import scenes


def main() -> int:
    """Print what grew or stayed; 0 if nothing did."""
    parser = argparse.ArgumentParser(prog="python -m tests.leaks", description=__doc__)
    parser.add_argument("scene", choices=scenes.SCENES)
    parser.add_argument("--on", metavar="CARD", help="a virtual card; the CPU if none is named")
    parser.add_argument("--only", nargs="*", default=list(scenes.CELLS), choices=scenes.CELLS)
    parser.add_argument("--rounds", type=int, default=scenes.ROUNDS, help="between two counts")
    options = parser.parse_args()
    scenes.ROUNDS = options.rounds
    grown = scenes.play(options.scene, options.on, options.only)
    print(*grown, sep="\n")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
