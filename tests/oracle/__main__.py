"""The virtual card against torch's own CUDA code: `python -m tests.oracle`.

python -m tests.oracle [--card NAME] [--dtype TYPE ...] [OPERATOR ...]
python -m tests.oracle --run script.py ...      any program on the oracle
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.oracle.compare import report
from tests.oracle.launch import OUT, environment

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = ("float32", "float16", "int64")


def record(out: Path, options: argparse.Namespace, dtype: str, *, virtual: bool) -> Any:
    """What record.py finds in a process of its own."""
    command = [options.python if virtual else sys.executable, "-m", "tests.oracle.record", str(out)]
    command += [*options.names, "--dtype", dtype, *(["--virtual", options.card] * virtual)]
    env = dict(os.environ) if virtual else environment(options.card)
    subprocess.run(command, env=env, check=True)
    return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="OPERATOR", help="(all)")
    parser.add_argument("--card", default="H100 80GB", help="(%(default)s)")
    parser.add_argument("--dtype", action="append", help="may be repeated (float32 float16 int64)")
    parser.add_argument("--python", default=sys.executable, help="for the virtual card (this one)")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="PROGRAM")
    options = parser.parse_args()
    if options.run:
        command = [sys.executable, *options.run]
        done = subprocess.run(command, env=environment(options.card), check=False)
        raise SystemExit(done.returncode)
    OUT.mkdir(parents=True, exist_ok=True)
    for dtype in options.dtype or DTYPES:
        both = (
            record(OUT / f"{options.card} {dtype} {name}.json", options, dtype, virtual=virtual)
            for name, virtual in (("oracle", False), ("virtual", True))
        )
        lines = [f"# {options.card}, {dtype}", *report(*both), ""]
        (OUT / f"{options.card} {dtype}.txt").write_text("\n".join(lines))
        print("\n".join(lines[:3]))
    print(f"Every difference: {OUT}")


if __name__ == "__main__":
    main()
