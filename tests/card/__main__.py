"""Measure a real card for 15 minutes: `python -m tests.card [PART ...]`.

Measures on the first card that torch sees what nbmem's tables are made from, each part in a process
of its own and into a file of its own under out/card, named by card, driver, torch and CUDA. It can
be interrupted at any time: a second start goes on. A part that is named alone has all of the time;
`--share` splits it among processes that run beside each other. `python -m tests.card.tables` reads
the files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from tests.card.parts import ALL, NAMED, PARTS, Part, Share
from tests.card.results import Results, read_results
from tests.card.run_part import OUT_OF_TIME

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out" / "card"
PATIENCE_S = 30
"""Beyond a part's time, for the case that it is at."""


def measure(part: Part, path: Path, seconds: float, workers: int = 1, share: Share = ALL) -> int:
    """Run a part in a process; return its status, OUT_OF_TIME if ended."""
    command = [sys.executable, "-m", "tests.card.run_part", part.name, str(path)]
    command += ["--seconds", f"{seconds:.0f}", "--workers", str(workers), "--share", str(share)]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            return process.wait(seconds + PATIENCE_S)
        except subprocess.TimeoutExpired:
            return OUT_OF_TIME
        finally:  # It, and what it has started; also when a person interrupts.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run_parts(
    parts: Iterable[Part],
    folder: Path,
    until: float,
    run: Callable[[Part, Path, float], int] = measure,
    share: Share = ALL,
) -> dict[str, str]:
    """Run the parts that the folder lacks; return the state of each.

    Args:
        parts: In the order of their worth.
        folder: Of their files.
        until: `time.monotonic()` at which the last has to end.
        run: Runs a part, and returns its process's status.
        share: Whose file of each part.
    """
    stand: dict[str, str] = {}
    for part in parts:
        path, status = folder / share.file(part.name), None
        before = read_results(path).begun
        end = min(until, time.monotonic() + part.seconds)
        while not read_results(path).complete and (left := end - time.monotonic()) >= 1:
            print(f"{part.name}: {part.what}, {left:.0f} s at most", flush=True)
            status = run(part, path, left)
            begun = read_results(path).begun
            if status in (0, OUT_OF_TIME) or begun == before:
                break
            before = begun  # One that crashes is followed by another.
        stand[part.name] = describe_part(read_results(path), status)
    return stand


def describe_part(known: Results, status: int | None) -> str:
    """Describe the state of a part in words.

    Args:
        known: What its file holds.
        status: Of the last process that ran it now; None if none did.
    """
    cut = {None: "not begun, no time was left", OUT_OF_TIME: "cut, its time was over"}
    word = "complete" if known.complete else cut.get(status, "not complete")
    return f"{word}, {len(known.cases)} cases"


def results_folder() -> str:
    """Name the folder of this machine's card, driver and versions.

    Raises:
        SystemExit: No card can be used here.
    """
    asked = [sys.executable, "-c", "from tests.card.results import *; print(folder_name(head()))"]
    answer = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode:
        last = (answer.stderr.splitlines() or [""])[-1]
        raise SystemExit(f"No card can be used here: {last}")
    return answer.stdout.strip()


def main() -> None:
    known = {part.name: part for part in (*PARTS, *NAMED)}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="PART", help=", ".join(known))
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--workers", type=int, default=1, help="for parts of many processes")
    parser.add_argument("--share", type=Share.read, default=ALL, help="2/5: the second of five")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    begin = time.monotonic()
    try:
        folder = options.out / results_folder()
        parts = [known[name] for name in known if name in options.names] or PARTS
        if len(parts) == 1:
            parts = [parts[0]._replace(seconds=60 * options.minutes)]
        run = partial(measure, workers=options.workers, share=options.share)
        stand = run_parts(parts, folder, begin + 60 * options.minutes, run, options.share)
    except KeyboardInterrupt:
        raise SystemExit(f"\nInterrupted: start it again to go on. So far: {options.out}") from None
    for name, words in stand.items():
        print(f"{name}: {words}")
    print(f"{folder}\ndocs/questions/measuring.md says how to send it.")


if __name__ == "__main__":
    main()
