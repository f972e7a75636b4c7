"""Run nbmem's tests of torch on other releases of it, one environment after the other."""

from __future__ import annotations

import argparse
import shutil
import subprocess

from environment import ROOT, pip, prepare, require_python, requirements, say

RELEASES = ("2.6.0", "2.9.1", "2.11.0", "2.13.0", "newest")
TESTS = ("virtual", "holders", "record", "ledger", "oom", "tips", "ipython")
COST = (
    "Where pip finds no CPU build, each release is the CUDA build with its libraries: 5 to 7 GB on "
    "disk, given back when its tests have run. No driver and no card are needed."
)


def check(release: str, *, keep: bool) -> int:
    """Make the environment of one release, run the tests in it, and remove it."""
    name = f".venv-torch-{release}"
    python = prepare(name, "run", "test")
    wanted = "torch" if release == "newest" else f"torch=={release}"
    say(f"Installing {wanted} into {name}")
    pip(ROOT / name, "install", wanted, *requirements("frameworks"))
    try:
        tests = [f"tests/{folder}" for folder in TESTS]
        command = [str(python), "-m", "pytest", "-q", "-n", "logical", *tests]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    finally:
        if not keep:
            shutil.rmtree(ROOT / name, ignore_errors=True)


def main() -> int:
    """Check each release; the exit code is 1 if one failed."""
    require_python()
    parser = argparse.ArgumentParser(description=f"{__doc__} {COST}")
    parser.add_argument(
        "releases", nargs="*", default=RELEASES, help=f"without any: {' '.join(RELEASES)}"
    )
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    options = parser.parse_args()
    say(COST)
    results = {release: check(release, keep=options.keep) for release in options.releases}
    for release, code in results.items():
        say(f"torch {release}: {'all tests passed' if code == 0 else 'failed'}")
    return 1 if any(results.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
