"""Compare the virtual card with CUDA code: `python -m tests.oracle`.

python -m tests.oracle [--card NAME ...] [--dtype TYPE ...] [OPERATOR ...]
python -m tests.oracle --models [PART OF A NAME ...]      training steps of many libraries' models
python -m tests.oracle --compiled [PART OF A NAME ...]    compiled steps of training
python -m tests.oracle --everyday                         calls and mistakes of everyday
python -m tests.oracle --errors                           what torch's databases list as errors
python -m tests.oracle --engines [NAME or SCRIPT ...]     both engines beside recordings
python -m tests.oracle --run script.py ...      any program on the oracle
python -m tests.oracle --probes [TEST ...]      nbmem's tests of capture with the oracle as the card
python -m tests.oracle --real [--workers N] --probes [TEST ...]      on the machine's own card

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

from tests.oracle import compare, compiled, engines, errors, everyday, models, probes
from tests.oracle.launch import OUT, environment, release_folder
from tests.oracle.record import results

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = ("float32", "float16", "bfloat16", "int64")
MODEL_DTYPES = ("float32", "bfloat16")
"""The latter under autocast."""
CARDS = ("H100 80GB",)


def record(out: Path, options: argparse.Namespace, card: str, dtype: str, *, virtual: bool) -> Any:
    """Record in processes; start another one after a crash."""
    python = options.virtual_python if virtual else sys.executable
    module = "tests.oracle.models" if options.models else "tests.oracle.record"
    command = [python, "-m", module, str(out), *options.names, "--dtype", dtype]
    env = dict(os.environ) if virtual else environment(card, values=not options.models)
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
    """Run the oracle and the virtual card at the same time."""
    folder = release_folder() / "results"
    folder.mkdir(parents=True, exist_ok=True)
    label = f"{card} {dtype}{' models' * options.models}"
    paths = [folder / f"{label} {name}.jsonl" for name in ("oracle", "virtual")]
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


def compare_everyday(card: str, python: str) -> None:
    """Both answers to each line of everyday.txt; every difference goes into a file."""
    real = everyday.answers(sys.executable, environment(card), virtual=None)
    found = everyday.differences(real, everyday.answers(python, dict(os.environ), virtual=card))
    path = OUT / f"{card} everyday.txt"
    path.write_text("\n".join([*found, ""]))
    print(f"{len(real)} lines, {len(found)} differ: {path}")


def compare_errors(card: str, python: str) -> None:
    """Compare both sides' errors; write every difference into a file."""
    real = errors.answers(sys.executable, environment(card), virtual=None)
    here = errors.answers(python, dict(os.environ), virtual=card)
    path = OUT / f"{card} errors.txt"
    path.write_text("\n".join([*everyday.differences(real, here), ""]))
    print("\n".join([errors.HEAD, errors.row(card, errors.counts(real, here))]))
    print(f"Every difference: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators, or models (all)")
    parser.add_argument("--models", action="store_true", help="models instead of operators")
    parser.add_argument("--engines", action="store_true", help="programs by both engines")
    parser.add_argument("--compiled", action="store_true", help="compiled steps of training")
    parser.add_argument("--everyday", action="store_true", help="calls and mistakes of everyday")
    parser.add_argument("--errors", action="store_true", help="what torch lists as errors")
    parser.add_argument("--probes", nargs=argparse.REMAINDER, metavar="TEST")
    parser.add_argument("--real", action="store_true", help="probes on the machine's own card")
    parser.add_argument(
        "--workers", type=int, default=1, help="probes beside each other (%(default)s)"
    )
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
    if options.probes is not None:
        how = {"real": options.real, "workers": options.workers}
        raise SystemExit(probes.run(options.probes, **how))
    if options.engines:
        engines.run(options.names, (options.card or CARDS)[0])
        return
    if options.compiled:
        compiled.run(options.names, (options.card or CARDS)[0], options.virtual_python)
        return
    if options.everyday:
        compare_everyday((options.card or CARDS)[0], options.virtual_python)
        return
    if options.errors:
        compare_errors((options.card or CARDS)[0], options.virtual_python)
        return
    kind: Any = models if options.models else compare
    table = [kind.HEAD]
    whole: dict[str, Any] = {}
    for card in options.card or CARDS:
        environment(card)  # It is built before two processes want it.
        for dtype in options.dtype or (MODEL_DTYPES if options.models else DTYPES):
            answers = both(options, card, dtype)
            found = kind.compared(*answers)
            whole |= {f"{card} {dtype} {name}": one for name, one in found.items()}
            here = [*kind.rows(f"{card}, {dtype}", found)]
            table += here
            lines = [*kind.report(*answers), ""]
            (OUT / f"{card} {dtype}{' models' * options.models}.txt").write_text("\n".join(lines))
            print("\n".join([kind.HEAD, *here]), flush=True)
    table.append(kind.row("all", whole))
    (OUT / "table.md").write_text("\n".join([*table, ""]))
    print("\n".join(table))
    print(f"Every difference: {OUT}")


if __name__ == "__main__":
    main()
