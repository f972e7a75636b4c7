"""Run nbmem's tests of torch on other releases of it or of Python, one environment each.

Left out is what no torch takes part in: tests that read recordings or files, and those of texts,
pictures and front ends.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from environment import find_python, prepare, require_python, requirements
from installing import ROOT, pip, say

RELEASES = ("2.6.0", "2.9.1", "2.11.0", "2.13.0", "newest")
TESTS = (
    "core",
    "guest",
    "faults/test_capture.py",
    "virtual",
    "holders",
    "record",
    "live/test_known.py",
    "live/test_machine.py",
    "freeing",
    "oom",
    "tips",
    "ipython",
    "estimate/test_isolation.py",  # the rest of estimate runs the same machinery for minutes
)
LEFT_OUT = (
    "oom/test_message.py",
    "oom/test_recorded.py",
    "tips/test_catalogue.py",
    "tips/test_engine.py",
    "tips/test_scenarios.py",
    "tips/test_silence.py",
    "ipython/test_completion.py",
    "ipython/test_kernel.py",  # the shell in a process of its own
)
COST = (
    "Where pip finds no CPU build, each release is the CUDA build with its libraries: 5 to 7 GB on "
    "disk, given back when its tests have run. No driver and no card are needed."
)


class Result(NamedTuple):
    """How the tests ended on one release; `counts` is a sentence."""

    release: str
    python: str
    failed: bool
    counts: str
    seconds: float


def check(release: str, interpreter: str, *, keep: bool) -> Result:
    """Make the environment of one release, run the tests in it, and remove it."""
    name = f".venv-torch-{release}"
    python = prepare(name, "run", "test", interpreter=interpreter)
    wanted = ["--upgrade", "torch"] if release == "newest" else [f"torch=={release}"]
    say(f"Installing {wanted[-1]} into {name}")
    pip(ROOT / name, "install", *wanted, *requirements("frameworks"))
    try:
        return _tested(python)
    finally:
        if not keep:
            shutil.rmtree(ROOT / name, ignore_errors=True)


def _tested(python: Path) -> Result:
    asks = "import platform, torch; print(torch.__version__, platform.python_version())"
    release, version = subprocess.check_output([str(python), "-c", asks], text=True).split()
    record = ROOT / "out" / f"torch-{release}-python-{version}.xml"
    record.unlink(missing_ok=True)
    tests = [f"tests/{place}" for place in TESTS]
    tests += [f"--ignore=tests/{place}" for place in LEFT_OUT]
    command = [str(python), "-m", "pytest", "-q", "-n", "logical", "--maxprocesses", "8"]
    begin = time.monotonic()
    command += [f"--junit-xml={record}", *tests]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    seconds = time.monotonic() - begin
    return Result(release, version, code != 0, _counts(record), seconds)


def _counts(record: Path) -> str:
    if not record.exists():
        return "pytest ended without a result"
    suite = next(ET.parse(record).iter("testsuite"))  # noqa: S314 - pytest has just written it
    total, skipped, *failed = (
        int(suite.get(key, 0)) for key in ("tests", "skipped", "failures", "errors")
    )
    return f"{total - skipped - sum(failed)} passed, {skipped} skipped, {sum(failed)} failed"


def main() -> int:
    """Check each release; the exit code is 1 if one failed."""
    require_python()
    parser = argparse.ArgumentParser(description=f"{__doc__} {COST}")
    parser.add_argument(
        "releases", nargs="*", default=RELEASES, help=f"without any: {' '.join(RELEASES)}"
    )
    parser.add_argument("--python", default=sys.executable, help="a version such as 3.13")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    options = parser.parse_args()
    there = Path(options.python).exists()
    interpreter = options.python if there else find_python(options.python)
    if interpreter is None:
        parser.error(f"there is no Python {options.python} on the path or among pyenv's")
    say(COST)
    results = [check(release, interpreter, keep=options.keep) for release in options.releases]
    for one in results:
        say(f"torch {one.release}, Python {one.python}: {one.counts} in {one.seconds:.0f} s")
    return 1 if any(one.failed for one in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
