"""The traceback of a failed cell keeps the tensors of its frames.

What it sees
    Tensors that only `sys.last_traceback`, `sys.last_exc` or IPython's own copy of them reaches:
    locals of the functions that ran when a cell failed or was interrupted. And what only a name of
    the notebook reaches by way of such frames: `except ValueError as e: failed.append(e)`.
    The frames of a cell that failed before the last one are garbage, but in cycles.
What it costs
    Their bytes, until another cell fails; so the same cell, run again, runs out of memory again.
Do instead
    `%nbmem free traceback`. `del sys.last_traceback` is not enough: IPython keeps a copy. Of an
    exception of your own keep the text (`str(e)`), or `e.with_traceback(None)`.
When to ignore it
    You are about to use `%debug` on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.session.holders import RUN_BEFORE, HeldStorage, HolderKind
from nbmem.core.session.tensor_names import IN_TRACEBACK, in_traceback
from nbmem.report.analysis.growth_candidates import common_place
from nbmem.report.model import Command
from nbmem.report.tips.rule import Findings, Rule, exact, fmt

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Find tensors that only a traceback keeps.

    Includes those in the graph of one of its locals.
    """
    held = e.held_only_by(HolderKind.TRACEBACK)
    before = [h for h in held if all(RUN_BEFORE in way.root for way in h.holders)]
    mine = [h for h in held if h not in before]
    freed = e.freed_bytes(mine)
    if e.worth(freed):
        largest = max(mine, key=lambda s: s.size)
        yield RULE.finding(
            title=f"`%nbmem free traceback` gives back {fmt(freed)} of the cell that failed",
            evidence=f"{len(mine)} tensors live only in the frames of a traceback; the largest is "
            f"{largest.name}, {fmt(largest.size)}.",
            saves=exact(freed),
            command=Command(name="free", arguments=("traceback",)),
        )
    yield from _of_runs_before(e, before)
    yield from _named(e)


def _of_runs_before(e: Evidence, mine: list[HeldStorage]) -> Findings:
    """Find what failed cells before the last one keep."""
    freed = e.freed_bytes(mine)
    if e.worth(freed):
        largest = max(mine, key=lambda s: s.size)
        yield RULE.finding(
            title=f"{fmt(freed)} belong to {RUN_BEFORE}: `import gc; gc.collect()`",
            evidence=f"{len(mine)} tensors live only in frames of exceptions that a later one has "
            f"replaced; the largest is {largest.name}, {fmt(largest.size)}. "
            "`%nbmem free traceback` collects them, too.",
            saves=exact(freed),
            code="import gc\n\ngc.collect()",
            command=Command(name="free", arguments=("traceback",)),
        )


def _named(e: Evidence) -> Findings:
    """Find exceptions that names keep, and their tensors."""
    kinds = (HolderKind.NAME, HolderKind.GRAPH)
    groups: dict[tuple[str, ...], list[HeldStorage]] = {}
    for held in e.held:
        if all(way.kind in kinds and in_traceback(way.path) for way in held.holders):
            groups.setdefault(tuple(sorted({way.root for way in held.holders})), []).append(held)
    for roots, mine in groups.items():
        freed = e.freed_bytes(mine)
        if not e.worth(freed):
            continue
        places = [_place(root, mine) for root in roots]
        largest = max(mine, key=lambda h: h.size)
        tensors = (
            f"{len(mine)} tensors live only in frames of exceptions; the largest is "
            f"{largest.name}, {fmt(largest.size)}."
        )
        root = roots[0]
        if len(roots) == 1 and root.isidentifier() and "." not in places[0]:
            yield RULE.finding(
                title=f"`del {root}` gives back {fmt(freed)}: tensors of an exception's frames",
                evidence=tensors,
                saves=exact(freed),
                code=f"import gc\n\ndel {root}   # keep str(e), or e.with_traceback(None)\n"
                f"gc.collect()   # a frame of the exception may refer to {root}",
                command=Command(name="free", arguments=(root,)),
            )
        else:
            yield RULE.finding(
                title=f"Exceptions in {' and '.join(f'`{one}`' for one in places)} keep "
                f"{fmt(freed)} of their frames: keep their text alone (`str(e)`), or set "
                "`e.__traceback__ = None`",
                evidence=tensors,
                saves=exact(freed),
            )


def _place(root: str, held: Sequence[HeldStorage]) -> str:
    """Return the innermost object of a root that has all exceptions."""
    ways = [way.path for one in held for way in one.holders if way.root == root]
    return common_place(path.partition(IN_TRACEBACK)[2] for path in ways) or root


RULE = Rule(name="traceback_kept", text=__doc__, check=check, anywhere=True)
