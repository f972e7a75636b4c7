"""The project's own tests of a real card."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.card.parts import Case

ROOT = Path(__file__).parents[2]


def cases() -> Iterator[Case]:
    """One run of pytest, in one process as people run it."""
    yield "tests/gpu", run


def run() -> dict[str, Any]:
    """How each test ended, with what it measured."""
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder, "tests.xml")
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={xml}"]
        command = [sys.executable, "-m", "pytest", "-m", "gpu", *options, "tests/gpu"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not xml.exists():
            return {"pytest": (done.stderr or done.stdout)[-500:]}
        return {case.get("name", ""): ended(case) for case in ET.parse(xml).iter("testcase")}


def ended(case: ET.Element) -> Any:
    """What pytest's report says of a test."""
    for kind in ("failure", "error", "skipped"):
        if (found := case.find(kind)) is not None:
            return f"{kind}: {found.get('message', '')[:300]}"
    measured = {one.get("name"): one.get("value") for one in case.iter("property")}
    return {"passed": measured} if measured else "passed"
