"""Compare the virtual GPU with recorded runs of real models.

This uses the CUDA build of torch, in an environment of its own.
"""

from __future__ import annotations

import argparse
import subprocess

from environment import prepare_cuda_models, require_python
from installing import ROOT


def main() -> int:
    """Prepare the environment and pass the arguments to tests/accuracy.

    What the environment costs is printed first.
    """
    require_python()
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="All arguments are passed on to `python -m tests.accuracy`."
    )
    _, arguments = parser.parse_known_args()
    python = prepare_cuda_models()
    command = [str(python), "-m", "tests.accuracy", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
