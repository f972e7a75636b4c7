"""Tables of GPUMemNet's jobs: by kind of network, and each group as rows of the other sources."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from tests.other_cards import gpumemnet
from tests.other_cards.gpumemnet_models import arguments_of
from tests.other_cards.rows import STEP, Compared

SHALLOW = 4
"""Layers up to which a convolutional network counts as shallow."""
SMALL, DEEP = f"up to {SHALLOW} layers", f"from {SHALLOW + 1} layers"
HEAD = (
    "| A100 40GB | jobs | beyond reserved, MiB | within 2 MiB | median difference | largest "
    "| ran out there | of these here | only here |"
)


class JobResult(NamedTuple):
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


def table(compared: Iterable[JobResult]) -> list[str]:
    """Format one line for each group.

    What a process takes beyond reserved bytes is one figure for all that load the same libraries.
    It is the median of what is left of nvidia-smi's figure in their smaller networks.
    """
    groups = _groups(compared)
    return [
        HEAD,
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(_line(name, groups[name], _beyond(name, groups)) for name in sorted(groups, key=_order)),
    ]


def rows(compared: Iterable[JobResult]) -> dict[str, list[Compared]]:
    """Return each group's jobs that ended on both cards, as rows of any source."""
    groups = _groups(compared)
    return {
        name: [
            Compared(
                name=one.job.name,
                card=gpumemnet.CARD,
                measured=one.job.used,
                said=one.said.reserved + int(_beyond(name, groups)),
            )
            for one in _finished(groups[name])
        ]
        for name in sorted(groups, key=_order)
    }


def _groups(compared: Iterable[JobResult]) -> dict[str, list[JobResult]]:
    groups: dict[str, list[JobResult]] = defaultdict(list)
    for one in compared:
        groups[one.group].append(one)
    return groups


def _beyond(name: str, groups: dict[str, list[JobResult]]) -> float:
    """Return what a process of a group takes beyond reserved bytes, from its smaller networks."""
    return _left(groups.get(name.replace(DEEP, SMALL)) or groups[name])


def _order(name: str) -> tuple[bool, bool, str]:
    return not name.startswith("perceptrons"), DEEP in name, name


def _left(results: list[JobResult]) -> float:
    """Return the median of what nvidia-smi showed beyond reserved bytes."""
    left = [r.job.used - r.said.reserved for r in _finished(results)]
    return statistics.median(left) if left else 0


def _finished(results: list[JobResult]) -> list[JobResult]:
    return [r for r in results if not (r.job.ran_out or r.said.ran_out or r.said.error)]


def _line(name: str, results: list[JobResult], beyond: float) -> str:
    both = _finished(results)
    off = [r.said.reserved + beyond - r.job.used for r in both]
    shares = [100 * abs(d) / r.job.used for d, r in zip(off, both, strict=True)]
    within = sum(abs(d) <= STEP for d in off)
    worst = max(zip(shares, off, strict=True), default=(0.0, 0.0))
    sign = "-" if worst[1] < 0 else "+" if worst[1] > 0 else ""
    there = [r for r in results if r.job.ran_out]
    here = sum(r.said.ran_out for r in there)
    only = sum(r.said.ran_out and not r.job.ran_out for r in results)
    return (
        f"| {name} | {len(results)} | {beyond / (1 << 20):,.0f} | {within} of {len(both)} "
        f"| {statistics.median(shares or [0.0]):.2f}% | {sign}{worst[0]:.2f}% "
        f"| {len(there)} | {here} | {only} |"
    )
