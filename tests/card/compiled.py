"""Part `compiled`: what compiled steps of training ask for, and what the same steps take eagerly.

Each workload has a process and folders of Inductor's and Triton's of its own, several beside each
other, for compiling is the CPU's work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmem import virtual
from tests.oracle.programs import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.card.parts import Case

HUNG_S = 240
EAGERLY = ", eager"


def asked(name: str) -> dict[str, Any] | str:
    """What tests.oracle.compiled records of a workload, or what it raises."""
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
    """Lists of bytes by name, as the tables compare them; a sentence is what was raised."""
    if "error" in found:
        return str(found["error"])
    allocated, reserved = zip(*found["peaks"], strict=True)
    peaks = {"peak allocated": list(allocated), "peak reserved": list(reserved)}
    return {**peaks, "last step": found["sizes"], "private pools": found["pools"]}


def cases() -> Iterator[Case]:
    """The workloads compiled, then eagerly."""
    for name in [*WORKLOADS, *(f"{name}{EAGERLY}" for name in WORKLOADS)]:
        yield name, partial(asked, name)
