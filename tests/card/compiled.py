"""Part `compiled`: requests of compiled training steps and eager ones.

Each workload has a process and folders of Inductor's and Triton's of its own, several beside each
other, for compiling is the CPU's work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmem import virtual
from tests.oracle.programs import WORKLOADS

if TYPE_CHECKING:
    from tests.card.parts import Case

HUNG_S = 240
EAGERLY = ", eager"


def record_compiled(name: str) -> dict[str, Any] | str:
    """Record a compiled workload, or return its error as a sentence."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "asked.json"
        command = [sys.executable, "-m", "tests.oracle.compiled", str(out)]
        command.append(name.removesuffix(EAGERLY))
        card = virtual.active()
        command += [] if card is None else ["--virtual", card.name]
        env = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "TORCH_COMPILE_DISABLE": str(int(name.endswith(EAGERLY))),
        }
        subprocess.run(command, env=env, check=False, timeout=HUNG_S)
        return moments(json.loads(out.read_text()))


def moments(found: dict[str, Any]) -> dict[str, Any] | str:
    """Return lists of bytes by name; a sentence stands for an error."""
    if "error" in found:
        return str(found["error"])
    allocated, reserved = zip(*found["peaks"], strict=True)
    peaks = {"peak allocated": list(allocated), "peak reserved": list(reserved)}
    return {**peaks, "last step": found["sizes"], "private pools": found["pools"]}


def cases() -> Iterator[Case]:
    """Yield the workloads compiled, then eagerly."""
    for name in [*WORKLOADS, *(f"{name}{EAGERLY}" for name in WORKLOADS)]:
        yield name, partial(record_compiled, name)
