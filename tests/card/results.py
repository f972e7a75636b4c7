"""Results of a part as JSON lines, which survive interruptions.

Each line is written at once. What an interruption tears is left out when the file is read, and a
second start goes on behind the last whole line.
"""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.capture.devices.nvml import load

if TYPE_CHECKING:
    from pathlib import Path

COMPLETE = {"complete": True}
TRIES = 2
"""An interruption and a crash look alike: a case that was begun so often is left alone."""


class Results(NamedTuple):
    """Contents of a part's file.

    Attributes:
        head: Card, driver and versions; empty if there is no file.
        cases: What was found, by case, in order.
        begun: How often each case was begun.
        complete: Nothing is left to do.
    """

    head: dict[str, Any]
    cases: dict[str, Any]
    begun: Counter[str]
    complete: bool

    def lacks(self, case: str) -> bool:
        """Return whether the case has not been run yet."""
        return case not in self.cases and self.begun[case] < TRIES


def read_results(path: Path) -> Results:
    """Read a part's file and skip torn lines."""
    found = Results({}, {}, Counter(), complete=False)
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row == COMPLETE:
            found = found._replace(complete=True)
        elif "head" in row:
            found.head.update(row["head"])
        elif "begun" in row:
            found.begun[row["begun"]] += 1
        else:
            found.cases[row["case"]] = row["found"]
    return found


class Writer:
    """Appends to a part's file, behind its last whole line."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = Lock()
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        self._file = path.open("a", encoding="utf-8")
        if torn:
            self._file.write("\n")
        if not read_results(path).head:
            self._write({"head": head})

    def begin(self, name: str) -> None:
        """Record that a case begins, before its process may crash."""
        self._write({"begun": name})

    def case(self, name: str, found: Any) -> None:
        """Record a case's result."""
        self._write({"case": name, "found": found})

    def finish(self) -> None:
        """Record that the part is complete."""
        self._write(COMPLETE)
        self._file.close()

    def _write(self, row: Any) -> None:
        with self._lock:  # cases may run beside each other
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()


def head() -> dict[str, Any]:
    """Return torch's first card, driver and versions, without a context.

    `real`: it is a real card's, neither the oracle's nor a virtual one's.
    """
    import torch

    from nbmem import virtual

    nvml = load()
    nvml.nvmlInit()
    driver = nvml.nvmlSystemGetDriverVersion()
    properties = torch.cuda.get_device_properties(0)
    return {
        "card": properties.name,
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "processors": properties.multi_processor_count,
        "capability": [properties.major, properties.minor],
        "l2": properties.L2_cache_size,
        "total": properties.total_memory,
        "real": virtual.active() is None and "standin" not in driver,
    }


def folder_name(about: dict[str, Any]) -> str:
    """The card, driver, torch and CUDA of a head, as the name of a folder."""
    parts = [about["card"], about["driver"], f"torch {about['torch']}", f"cuda {about['cuda']}"]
    if not about["real"]:
        parts.insert(0, "NO REAL CARD")
    return re.sub(r"[^\w.+-]+", "-", " ".join(parts))
