"""Measure this machine's NVIDIA card for nbmem's tables, in 15 minutes."""

from __future__ import annotations

import argparse
import os

from environment import hand_over, prepare, require_python
from installing import ROOT, print_line


def main() -> int:
    """Prepare the environment and pass the arguments to tests/card.

    The size of the download is printed first. With --tables, nothing is measured:
    tests/card/tables reads files of an earlier measurement.
    """
    require_python()
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Passed on: PART ... and --minutes, --share, --out; with --tables FOLDER ... and "
        "--write (into cards.toml), --no-compare (the row alone).",
    )
    parser.add_argument(
        "--python", help="one that has torch's CUDA build already; no environment is made"
    )
    parser.add_argument("--tables", action="store_true", help="read the files instead")
    options, arguments = parser.parse_known_args()
    python = options.python
    if python is None:
        print_line(
            "This environment holds the CUDA build of torch: about 5 GB, in .venv-cuda. "
            "The quarter of an hour begins when it is there."
        )
        python = str(prepare(".venv-cuda", "torch-cuda", "test"))
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])
    command = [python, "-m", "tests.card.tables" if options.tables else "tests.card", *arguments]
    env = dict(os.environ, PYTHONPATH=path)
    return hand_over(command, env)


if __name__ == "__main__":
    raise SystemExit(main())
