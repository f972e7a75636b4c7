"""Compare the virtual card with torch's own CUDA code.

This uses the CUDA build of torch, in an environment of its own.
"""

from __future__ import annotations

import argparse

from environment import hand_over, prepare, require_python
from installing import print_line


def main() -> int:
    """Prepare the environment and pass the arguments to tests/oracle.

    What the environment costs is printed first.
    """
    require_python()
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="All other arguments are passed on to `python -m tests.oracle`."
    )
    parser.add_argument(
        "--python", help="one that has torch's CUDA build already; no environment is made"
    )
    options, arguments = parser.parse_known_args()
    python = options.python
    if python is None:
        print_line(
            "This environment holds the CUDA build of torch: about 5 GB, in .venv-cuda. A C++ "
            "compiler and binutils are needed; no driver and no card are."
        )
        groups = ("torch-cuda", "test", "run", "frameworks", "browser")
        python = str(prepare(".venv-cuda", *groups))
    command = [python, "-m", "tests.oracle", *arguments]
    return hand_over(command)


if __name__ == "__main__":
    raise SystemExit(main())
