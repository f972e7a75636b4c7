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

from tests.oracle.programs import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.card.parts import Case

HUNG_S = 240
EAGERLY = ", eager"


def asked(name: str) -> dict[str, Any]:
    """What tests.oracle.compiled records of a workload."""
    eager = name.endswith(EAGERLY)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "asked.json"
        caches = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
        env = os.environ | caches | {"TORCH_COMPILE_DISABLE": str(int(eager))}
        command = [sys.executable, "-m", "tests.oracle.compiled", str(out)]
        subprocess.run([*command, name.removesuffix(EAGERLY)], env=env, check=False, timeout=HUNG_S)
        return dict(json.loads(out.read_text()))


def cases() -> Iterator[Case]:
    """The workloads compiled, then eagerly."""
    for name in [*WORKLOADS, *(f"{name}{EAGERLY}" for name in WORKLOADS)]:
        yield name, partial(asked, name)
