"""Compare the virtual GPU with recorded runs of real models.

This uses the CUDA build of torch, in an environment of its own.
"""

from __future__ import annotations

import argparse
import subprocess

from environment import prepare, require_python
from installing import ROOT, print_line


def main() -> int:
    """Prepare the environment and pass the arguments to tests/accuracy.

    What the environment costs is printed first.
    """
    require_python()
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="All arguments are passed on to `python -m tests.accuracy`."
    )
    _, arguments = parser.parse_known_args()
    print_line(
        "This environment holds the CUDA build of torch, torchvision, timm and transformers: about "
        "5 GB, in .venv-cuda. No driver and no card are needed."
    )
    python = prepare(".venv-cuda", "torch-cuda", "accuracy", "test")
    command = [str(python), "-m", "tests.accuracy", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
