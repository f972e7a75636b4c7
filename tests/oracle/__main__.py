"""The virtual card against torch's own CUDA code: `python -m tests.oracle`.

python -m tests.oracle [--card NAME ...] [--dtype TYPE ...] [OPERATOR ...]
python -m tests.oracle --run script.py ...      any program on the oracle

What the oracle answers is kept beside its libraries and asked again with --fresh alone; the virtual
card is asked anew, but for --resume. A run that was ended goes on with --resume.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tests.oracle.compare import HEAD, compared, report, row
from tests.oracle.launch import OUT, environment
from tests.oracle.record import results

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = ("float32", "float16", "bfloat16", "int64")
CARDS = ("H100 80GB",)


def record(out: Path, options: argparse.Namespace, card: str, dtype: str, *, virtual: bool) -> Any:
    """What record.py finds in processes of its own: one that crashes is followed by another."""
    python = options.virtual_python if virtual else sys.executable
    command = [python, "-m", "tests.oracle.record", str(out), *options.names, "--dtype", dtype]
    env = dict(os.environ) if virtual else environment(card)
    # Sets of names have an order of their own in each process, and with them a few samples.
    env |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    known = -1
    while subprocess.run(
        [*command, *["--virtual", card] * virtual], env=env, check=False
    ).returncode:
        if len(results(out)) == known:
            raise SystemExit(f"Nothing more can be recorded into {out}.")
        known = len(results(out))
    return results(out)


def both(options: argparse.Namespace, card: str, dtype: str) -> tuple[Any, Any]:
    """What the oracle and the virtual card answer, asked at the same time."""
    folder = OUT / "results"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{card} {dtype} {name}.jsonl" for name in ("oracle", "virtual")]
    for path, again in zip(paths, (options.fresh, not options.resume), strict=True):
        if again:
            path.unlink(missing_ok=True)
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(record, path, options, card, dtype, virtual=bool(number))
            for number, path in enumerate(paths)
        ]
        oracle, here = (job.result() for job in jobs)
    return oracle, here


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="OPERATOR", help="(all)")
    parser.add_argument("--card", action="append", help=f"may be repeated ({', '.join(CARDS)})")
    parser.add_argument("--dtype", action="append", help=f"may be repeated ({' '.join(DTYPES)})")
    parser.add_argument("--fresh", action="store_true", help="ask the oracle again, too")
    parser.add_argument("--resume", action="store_true", help="keep what the virtual card said")
    parser.add_argument("--virtual-python", default=sys.executable, help="(this one)")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="PROGRAM")
    options = parser.parse_args()
    if options.run:
        command = [sys.executable, *options.run]
        env = environment((options.card or CARDS)[0])
        raise SystemExit(subprocess.run(command, env=env, check=False).returncode)
    table = [HEAD]
    whole: dict[str, dict[str, str]] = {}
    for card in options.card or CARDS:
        environment(card)  # It is built before two processes want it.
        for dtype in options.dtype or DTYPES:
            answers = both(options, card, dtype)
            found = compared(*answers)
            whole |= {f"{card} {dtype} {name}": kinds for name, kinds in found.items()}
            table.append(row(f"{card}, {dtype}", found))
            (OUT / f"{card} {dtype}.txt").write_text("\n".join([*report(*answers), ""]))
            print("\n".join([HEAD, table[-1]]), flush=True)
    table.append(row("all", whole))
    (OUT / "table.md").write_text("\n".join([*table, ""]))
    print("\n".join(table))
    print(f"Every difference: {OUT}")


if __name__ == "__main__":
    main()
