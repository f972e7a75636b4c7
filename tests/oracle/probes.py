"""nbmem's tests of capture with the oracle as the card: `python -m tests.oracle --probes`.

The same tests as on the virtual card. What they hold of it here is held of torch's own allocator,
its counters, history and observer, of a driver and of NVML. The table says how they ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.oracle.launch import OUT, environment

ROOT = Path(__file__).parents[2]
START = Path(__file__).parent / "start"
CARD = "H100 80GB"
"""Of tests that choose none, which are those of a real card."""
PROBES = (
    "tests/gpu",
    "tests/record",
    "tests/holders",
    "tests/owners",
    "tests/oom",
    "tests/freeing",
    "tests/ipython",
    "tests/live",
    "tests/cli/test_cli_run.py",
    "tests/cli/test_cli_trouble.py",
    "tests/tips",
    "tests/guest",
    "tests/compare/test_growth.py",
    "tests/explorer/test_lives.py",
    "tests/integrations/test_callbacks.py",
    "tests/integrations/test_pytest_plugin.py",
    "tests/faults/test_capture.py",
)
HEAD = "| tests | passed | failed | only virtual | skipped |\n| --- | --: | --: | --: | --: |"


def started(env: dict[str, str]) -> dict[str, str]:
    """That environment for programs in which the oracle is in the virtual card's place."""
    path = [str(START), str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


def counted(xml: Path) -> dict[str, Counter[str]]:
    """By folder or file of tests: how many ended how, from pytest's own report."""
    found: dict[str, Counter[str]] = {}
    for case in ET.parse(xml).iter("testcase"):
        parts = case.get("classname", "").split(".")
        name = "/".join(parts[:3] if parts[1:2] in (["oracle"], ["cli"]) else parts[:2])
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            end = "failed"
        elif skipped is None:
            end = "passed"
        else:
            only = "only the virtual card" in str(skipped.get("message"))
            end = "only virtual" if only else "skipped"
        found.setdefault(name, Counter())[end] += 1
    return found


def table(found: dict[str, Counter[str]]) -> str:
    """Those counts as Markdown, and their sum."""
    rows = {**found, "all": sum(found.values(), Counter())}
    ends = ("passed", "failed", "only virtual", "skipped")
    lines = [
        f"| {name} | {' | '.join(str(counts[end]) for end in ends)} |"
        for name, counts in rows.items()
    ]
    return "\n".join([HEAD, *lines])


def run(wanted: list[str]) -> int:
    """Run those tests, all of PROBES if there are none; returns pytest's status."""
    xml = OUT / "probes.xml"
    tests = wanted or [name for name in PROBES if (ROOT / name).exists()]
    plugin = ["-p", "tests.oracle.apart", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugin, f"--junitxml={xml}", "-q", *tests]
    env = started(environment(CARD))
    status = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    if xml.exists():
        (OUT / "probes.md").write_text(table(counted(xml)) + "\n")
        print((OUT / "probes.md").read_text())
    return status
