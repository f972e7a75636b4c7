"""Part `promises`: the project's own tests of a real card."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from tests.card.parts import Case

ROOT = Path(__file__).parents[2]


def cases() -> Iterator[Case]:
    """Yield one run of pytest."""
    yield "tests/gpu", run


def run() -> dict[str, Any]:
    """Run pytest; return each test's outcome and measurements."""
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder, "tests.xml")
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={xml}"]
        command = [sys.executable, "-m", "pytest", "-m", "gpu", *options, "tests/gpu"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not xml.exists():
            return {"pytest": (done.stderr or done.stdout)[-500:]}
        return {case.get("name", ""): outcome_of(case) for case in ET.parse(xml).iter("testcase")}


def outcome_of(case: ET.Element) -> Any:
    """Return the outcome of a test from pytest's report."""
    for kind in ("failure", "error", "skipped"):
        if (found := case.find(kind)) is not None:
            return f"{kind}: {found.get('message', '')[:300]}"
    measured = {one.get("name"): one.get("value") for one in case.iter("property")}
    return {"passed": measured} if measured else "passed"
