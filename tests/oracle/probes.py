"""Test capture on the oracle's card: `python -m tests.oracle --probes`.

With --real before it the machine's own card is in the oracle's place (tests/oracle/real.py).

The same tests as on the virtual card. What they hold of it here is held of torch's own allocator,
its counters, history and observer, of a driver and of NVML. The table says how they ended and
what each part took.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

from tests.oracle.card import REAL
from tests.oracle.launch import OUT, environment

ROOT = Path(__file__).parents[2]
START = Path(__file__).parent / "start"
CARD = "H100 80GB"
"""Of tests that choose none, which are those of a real card."""
COUNT = {"tests/gpu": 2}
"""How many of it there are for which tests; one for all others."""
PROBES = (
    "tests/gpu",
    "tests/capture",
    "tests/heap",
    "tests/frameworks",
    "tests/oom",
    "tests/freeing",
    "tests/notebook",
    "tests/sidebar",
    "tests/cli/test_cli_run.py",
    "tests/cli/test_cli_errors.py",
    "tests/tips",
    "tests/host_safety",
    "tests/compare",
    "tests/explorer/test_lifetimes.py",
    "tests/integrations/test_callbacks.py",
    "tests/integrations/test_pytest_plugin.py",
    "tests/faults/test_capture.py",
    "tests/browser/test_sidebar_real_card.py",
)
HEAD = (
    "| tests | passed | failed | only virtual | skipped | seconds |\n"
    "| --- | --: | --: | --: | --: | --: |"
)


def started(env: dict[str, str]) -> dict[str, str]:
    """Return the environment in which the oracle replaces the card."""
    path = [str(START), str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


class PartResult(NamedTuple):
    """Outcomes of a part's tests, from pytest's report.

    Attributes:
        counts: How many ended how.
        failed: The names of those that failed.
        seconds: What the part took, whoever else used the machine.
    """

    counts: Counter[str]
    failed: tuple[str, ...] = ()
    seconds: float = 0


def read_result(xml: Path, seconds: float, code: int = 0) -> PartResult:
    """Read pytest's report; a missing or refused one is a failure."""
    if not xml.exists() or code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return PartResult(Counter(failed=1), (f"{xml.stem}: its process",), seconds)
    counts: Counter[str] = Counter()
    failed = []
    for case in ET.parse(xml).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            end = "failed"
            failed.append(f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}")
        elif skipped is None:
            end = "passed"
        else:
            only = "only the virtual card" in str(skipped.get("message"))
            end = "only virtual" if only else "skipped"
        counts[end] += 1
    return PartResult(counts, tuple(failed), seconds)


def table(found: dict[str, PartResult]) -> str:
    """Format the counts as Markdown with their sum and the failures."""
    whole = sum((one.counts for one in found.values()), Counter())
    rows = {**found, "all": PartResult(whole, seconds=sum(one.seconds for one in found.values()))}
    ends = ("passed", "failed", "only virtual", "skipped")
    lines = [
        f"| {name} | {' | '.join(str(one.counts[end]) for end in ends)} | {one.seconds:.0f} |"
        for name, one in rows.items()
    ]
    failed = [f"- {name}" for one in found.values() for name in one.failed]
    return "\n".join([HEAD, *lines, *([""] if failed else []), *failed])


def split(wanted: list[str]) -> tuple[list[str], list[str]]:
    """Separate tests from pytest's options; default to all of PROBES."""
    tests = [one for one in wanted if (ROOT / one.partition("::")[0]).exists()]
    return tests or list(PROBES), [one for one in wanted if one not in tests]


def files(parts: list[str]) -> list[str]:
    """Return the files of those parts, which can run side by side."""
    found: list[str] = []
    for part in parts:
        inside = sorted((ROOT / part).glob("test_*.py"))
        found += [one.relative_to(ROOT).as_posix() for one in inside] or [part]
    return found


def run_part(part: str, options: list[str], *, real: bool) -> PartResult:
    """Run a part in a process of its own, on a card of the oracle or on the machine's."""
    xml, begin = OUT / "probes" / f"{part.replace('/', '.')}.xml", time.monotonic()
    xml.unlink(missing_ok=True)
    plugin = ["-p", "tests.oracle.process_per_test", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugin, f"--junitxml={xml}", "-q"]
    count = next((n for name, n in COUNT.items() if part.startswith(name)), 1)
    env = {**os.environ, REAL: "1"} if real else environment(CARD, count=count)
    done = subprocess.run([*command, *options, part], cwd=ROOT, env=started(env), check=False)
    return read_result(xml, time.monotonic() - begin, done.returncode)


def run(wanted: list[str], *, real: bool = False, workers: int = 1) -> int:
    """Run those tests; return whether one has failed.

    The table is written anew after each part, so that a run that is ended has said what it knows.

    Args:
        wanted: Tests and pytest's options.
        real: On the machine's own card instead of the oracle's.
        workers: How many files run beside each other; a part after the other if it is one.
    """
    tests, options = split(wanted)
    found: dict[str, PartResult] = {}
    with ThreadPoolExecutor(workers) as pool:
        parts = tests if workers == 1 else files(tests)
        jobs = {pool.submit(run_part, part, options, real=real): part for part in parts}
        for job in as_completed(jobs):
            part = jobs[job]
            found[part] = job.result()
            (OUT / "probes.md").write_text(table(found) + "\n")
            print(table({part: found[part]}), flush=True)
    print((OUT / "probes.md").read_text())
    return int(any(one.counts["failed"] for one in found.values()))
