"""Compare gloo's processes with virtual ranks: `python -m tests.ranks`.

python -m tests.ranks                       # every program at world sizes 2, 3 and 4
python -m tests.ranks --world 2 fsdp2 ddp   # some
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nbmem.virtual.rank_messages import FOLDER
from tests.ranks.programs import PROGRAMS

ROOT = Path(__file__).parents[2]
NAMES = tuple(program.__name__ for program in PROGRAMS)
LIMIT_S = 100


def compare(world: int, names: tuple[str, ...] = NAMES) -> dict[str, list[str]]:
    """Return what differs between virtual ranks and processes, by program."""
    with tempfile.TemporaryDirectory() as folder:
        _start("gloo", range(world), world, folder, names)
        _start("H100", range(world), world, folder, names)
        pairs = [
            [json.loads(Path(folder, f"{place}.{rank}.json").read_text()) for place in PLACES]
            for rank in range(world)
        ]
    return {
        name: [
            f"rank {rank}: {line}"
            for rank, (real, virtual) in enumerate(pairs)
            for line in _differences(real.get(name, {}), virtual.get(name, {}))
        ]
        for name in names
    }


PLACES = ("gloo", "H100")


def _start(place: str, ranks: range, world: int, folder: str, names: tuple[str, ...]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), FOLDER: folder}
    command = [sys.executable, "-W", "ignore", "-m", "tests.ranks.rank_contents", place]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(world), folder, *names], cwd=ROOT, env=environment
        )
        for rank in ranks
    ]
    for process in running:
        process.wait(LIMIT_S)


def _differences(real: dict[str, Any], virtual: dict[str, Any]) -> list[str]:
    if "error" in real or "error" in virtual or not real or not virtual:
        return [f"{real.get('error')} | {virtual.get('error')}"]
    return [
        f"{what}: {_only(real[what], virtual[what])} | {_only(virtual[what], real[what])}"
        for what in real
        if real[what] != virtual[what]
    ]


def _only(mine: Any, its: Any) -> Any:
    if isinstance(mine, dict):
        return {name: value for name, value in mine.items() if its.get(name) != value}
    return [item for item in mine if item not in its]


def main() -> int:
    """Compare and print; 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.ranks")
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--world", type=int, action="append")
    options = parser.parse_args()
    failed = 0
    for world in options.world or (2, 3, 4):
        for name, lines in compare(world, tuple(options.programs) or NAMES).items():
            failed += bool(lines)
            print(f"{'differs' if lines else 'equal':8}{world}  {name}")  # noqa: T201
            for line in lines:
                print(f"        {line}")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
