"""Compare virtual cards with what others measured on theirs: `python -m tests.other_cards`.

With `--write` the table in docs/accuracy.md is made anew. A row takes about two seconds.
Convolutions need cuDNN, which `make other-cards` brings.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.other_cards import gpumemnet
from tests.other_cards.gpumemnet_models import arguments_of

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
BEGIN = "<!-- other cards: written by `make other-cards` -->"
END = "<!-- other cards: end -->"
STEP = 2 << 20
"""nvidia-smi's figures are multiples of it."""
SHALLOW = 4
"""Layers up to which a convolutional network counts as shallow."""
SMALL, DEEP = f"up to {SHALLOW} layers", f"from {SHALLOW + 1} layers"
HEAD = (
    "| A100 40GB | jobs | beyond reserved, MiB | within 2 MiB | median difference | largest "
    "| ran out there | of these here | only here |"
)
PRELOADED = ["tests.other_cards.gpumemnet", "torch._dynamo"]


class Compared(NamedTuple):
    """A job of a group, with what the virtual card says."""

    group: str
    job: gpumemnet.Job
    said: gpumemnet.Outcome


def group_of(job: gpumemnet.Job) -> str:
    """Return the row of the table that a job belongs to."""
    a = arguments_of(job.name)
    if job.kind != "cnn":
        return "perceptrons"
    depth = SMALL if a["depth"] <= SHALLOW else DEEP
    return f"convolutional networks {depth}" + (", batch norm" if a["batchnorm"] else "")


def compare(jobs: list[gpumemnet.Job], processes: int) -> list[Compared]:
    """Run jobs, each in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with context.Pool(processes, maxtasksperchild=1) as pool:
        said = pool.imap(gpumemnet.run, jobs, chunksize=1)
        return [Compared(group_of(j), j, s) for j, s in zip(jobs, said, strict=True)]


def table(compared: Iterable[Compared]) -> list[str]:
    """Format one line for each group.

    What a process takes beyond reserved bytes is one figure for all that load the same libraries.
    It is the median of what is left of nvidia-smi's figure in their smaller networks.
    """
    groups: dict[str, list[Compared]] = defaultdict(list)
    for one in compared:
        groups[one.group].append(one)
    small = {name: _left(rows) for name, rows in groups.items() if DEEP not in name}
    return [
        HEAD,
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(
            _line(name, groups[name], small.get(name.replace(DEEP, SMALL), _left(groups[name])))
            for name in sorted(groups, key=_order)
        ),
    ]


def _order(name: str) -> tuple[bool, bool, str]:
    return not name.startswith("perceptrons"), DEEP in name, name


def _left(rows: list[Compared]) -> float:
    """Return the median of what nvidia-smi showed beyond reserved bytes."""
    left = [r.job.used - r.said.reserved for r in _finished(rows)]
    return statistics.median(left) if left else 0


def _finished(rows: list[Compared]) -> list[Compared]:
    return [r for r in rows if not (r.job.ran_out or r.said.ran_out or r.said.error)]


def _line(name: str, rows: list[Compared], beyond: float) -> str:
    both = _finished(rows)
    off = [r.said.reserved + beyond - r.job.used for r in both]
    shares = [100 * abs(d) / r.job.used for d, r in zip(off, both, strict=True)]
    within = sum(abs(d) <= STEP for d in off)
    worst = max(zip(shares, off, strict=True), default=(0.0, 0.0))
    sign = "-" if worst[1] < 0 else "+" if worst[1] > 0 else ""
    there = [r for r in rows if r.job.ran_out]
    here = sum(r.said.ran_out for r in there)
    only = sum(r.said.ran_out and not r.job.ran_out for r in rows)
    return (
        f"| {name} | {len(rows)} | {beyond / (1 << 20):,.0f} | {within} of {len(both)} "
        f"| {statistics.median(shares or [0.0]):.2f}% | {sign}{worst[0]:.2f}% "
        f"| {len(there)} | {here} | {only} |"
    )


def write(lines: list[str]) -> None:
    """Put the table into the page, in the place of the former one."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    text = "\n".join([before + BEGIN, *lines, END]) + after
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    """Run the jobs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("mlp1", "mlp2", "cnn"), help="these jobs alone")
    parser.add_argument("--every", type=int, default=1, help="one job in so many")
    parser.add_argument("--rows", action="store_true", help="print each job as well")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    options = parser.parse_args()
    jobs = [job for job in gpumemnet.jobs() if options.kind in {None, job.kind}]
    compared = compare(jobs[:: options.every], options.processes)
    for one in compared if options.rows else ():
        left = (one.job.used - one.said.reserved) >> 20
        end = one.said.error or ("out of memory" if one.said.ran_out else "")
        print(f"{left:7d} MiB beyond reserved  {one.job.used >> 20:6d}  {one.job.name}  {end}")
    lines = table(compared)
    print("\n".join(lines))
    failed = [one for one in compared if one.said.error]
    for one in failed:
        print(f"{one.job.name}: {one.said.error}")
    if options.write:
        write(lines)


if __name__ == "__main__":
    main()
