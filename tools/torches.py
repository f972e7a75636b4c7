"""Run nbmem's tests of torch on other releases of it or of Python.

Each release has an environment of its own. The first tests are those of tests/smoke, whose figures
make the table of releases in docs/where.md. Left out is what no torch takes part in: tests that
read recordings or files, and those of texts, pictures and front ends.
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
from installing import ROOT, pip, print_line

RELEASES = ("2.6.0", "2.9.1", "2.11.0", "2.13.0", "newest")
SMOKE = ("demo", "CNN", "transformer with autocast", "compile", "fit", "traced cell in a kernel")
"""What tests/smoke runs, in its order: the columns of the table."""
TESTS = (
    "core",
    "host_safety",
    "faults/test_capture.py",
    "virtual",
    "heap",
    "capture",
    "sidebar/test_loop_categories.py",
    "sidebar/test_host_reader.py",
    "freeing",
    "oom",
    "tips",
    "notebook",
    "estimate/test_isolation.py",  # the rest of estimate runs the same machinery for minutes
)
LEFT_OUT = (
    "oom/test_oom_message.py",
    "oom/test_recorded.py",
    "tips/test_catalogue.py",
    "tips/test_engine.py",
    "tips/test_scenarios.py",
    "tips/test_healthy_programs.py",
    "notebook/test_completion.py",
    "notebook/test_kernel.py",  # the shell in a process of its own
)
COST = (
    "Where pip finds no CPU build, each release is the CUDA build with its libraries: 5 to 7 GB on "
    "disk, given back when its tests have run. No driver and no card are needed."
)


class ReleaseResult(NamedTuple):
    """The results of the tests on one release.

    `row` has what each test of tests/smoke saw, or "failed"; `counts` is a sentence on the others.
    """

    release: str
    python: str
    failed: bool
    row: list[str]
    counts: str
    seconds: float


def check(release: str, interpreter: str, *, keep: bool, smoke: bool) -> ReleaseResult:
    """Run the tests in an environment of one release.

    It is made for them, and removed unless `keep`.
    """
    name = f".venv-torch-{release}"
    python = prepare(name, "run", "test", interpreter=interpreter)
    wanted = ["--upgrade", "torch"] if release == "newest" else [f"torch=={release}"]
    print_line(f"Installing {wanted[-1]} into {name}")
    pip(ROOT / name, "install", *wanted, *requirements("frameworks"))
    try:
        return _tested(python, smoke=smoke)
    finally:
        if not keep:
            shutil.rmtree(ROOT / name, ignore_errors=True)


def _tested(python: Path, *, smoke: bool) -> ReleaseResult:
    asks = "import platform, torch; print(torch.__version__, platform.python_version())"
    release, version = subprocess.check_output([str(python), "-c", asks], text=True).split()
    name = f"torch-{release}-python-{version}"
    begin = time.monotonic()
    failed, record = _pytest(python, f"smoke-{name}", "tests/smoke")
    row, counts = _row(record), ""
    if not smoke:
        tests = [f"tests/{place}" for place in TESTS]
        tests += [f"--ignore=tests/{place}" for place in LEFT_OUT]
        workers = ("-n", "logical", "--maxprocesses", "8")
        others, record = _pytest(python, name, *workers, *tests)
        failed, counts = failed or others, _counts(record)
    return ReleaseResult(release, version, failed, row, counts, time.monotonic() - begin)


def _pytest(python: Path, name: str, *words: str) -> tuple[bool, Path]:
    """Run tests; return whether one failed, and the file of all results."""
    record = ROOT / "out" / f"{name}.xml"
    record.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-o", "junit_family=xunit1"]
    command += [f"--junit-xml={record}", *words]
    done = subprocess.run(command, cwd=ROOT, check=False)
    return done.returncode != 0, record


def _row(record: Path) -> list[str]:
    """Return what each test of tests/smoke saw, in their order."""
    if not record.exists():
        return ["failed"] * len(SMOKE)
    seen = []
    for case in ET.parse(record).iter("testcase"):  # noqa: S314 - pytest has just written it
        noted = next((one.get("value", "") for one in case.iter("property")), "failed")
        seen.append("failed" if case.find("failure") is not None else noted)
    return seen


def _counts(record: Path) -> str:
    if not record.exists():
        return "pytest ended without a result"
    suite = next(ET.parse(record).iter("testsuite"))  # noqa: S314 - pytest has just written it
    total, skipped, *failed = (
        int(suite.get(key, 0)) for key in ("tests", "skipped", "failures", "errors")
    )
    return f"{total - skipped - sum(failed)} passed, {skipped} skipped, {sum(failed)} failed"


def _table(results: list[ReleaseResult]) -> str:
    """Make the table of docs/where.md: a row for each release."""
    heads = ["torch", "Python", *SMOKE]
    rows = [heads, ["---"] * len(heads), *([r.release, r.python, *r.row] for r in results)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    """Check each release; return 1 if one failed, else 0."""
    require_python()
    parser = argparse.ArgumentParser(description=f"{__doc__} {COST}")
    parser.add_argument(
        "releases", nargs="*", default=RELEASES, help=f"without any: {' '.join(RELEASES)}"
    )
    parser.add_argument("--python", default=sys.executable, help="a version such as 3.13")
    parser.add_argument("--smoke", action="store_true", help="only what a newcomer runs first")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    options = parser.parse_args()
    there = Path(options.python).exists()
    interpreter = options.python if there else find_python(options.python)
    if interpreter is None:
        parser.error(f"there is no Python {options.python} on the path or among pyenv's")
    print_line(COST)
    results = [
        check(release, interpreter, keep=options.keep, smoke=options.smoke)
        for release in options.releases
    ]
    print_line(_table(results))
    for one in filter(lambda one: one.counts, results):
        print_line(f"torch {one.release}, Python {one.python}: {one.counts} in {one.seconds:.0f} s")
    return 1 if any(one.failed for one in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
