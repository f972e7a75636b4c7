"""Compare virtual cards with tables that need torch's CUDA build.

Those are Liger-Kernel's benchmarks and timm's. The build is in an environment of its own.
`tools/test.py other-cards` does the same with the sources that need the CPU build alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess

from environment import prepare_cuda_models, require_python
from installing import ROOT, pip

LIGER = "https://github.com/linkedin/Liger-Kernel"
MEGATRON = "megatron-core==0.16.1"
"""Some of Liger-Kernel's benchmarks compare with it."""


def main() -> int:
    """Prepare the environment and a clone; run tests/other_cards."""
    require_python()
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="All arguments are passed on to `python -m tests.other_cards`."
    )
    _, arguments = parser.parse_known_args()
    python = prepare_cuda_models()
    pip(python.parents[1], "install", "--no-deps", MEGATRON)
    clone = ROOT / "out" / "liger-kernel"
    if not clone.exists():
        subprocess.run(["git", "clone", "--quiet", LIGER, str(clone)], cwd=ROOT, check=True)  # noqa: S607
    command = [str(python), "-m", "tests.other_cards", "liger", "timm", *arguments]
    environment = dict(os.environ, LIGER_KERNEL_CLONE=str(clone))
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
