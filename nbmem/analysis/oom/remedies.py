"""What would have sufficed: each remedy is tried in the simulator before it is said."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.analysis.oom.groups import OUT, TRACEBACK
from nbmem.analysis.oom.simulate import Rerun, served_now
from nbmem.analysis.whatif import with_conf
from nbmem.core.categories import Category
from nbmem.core.units import format_bytes
from nbmem.report import Command, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from nbmem.analysis.oom.case import Case
    from nbmem.analysis.oom.groups import Group

    Ints = NDArray[np.int64]

MOST = 3
EXPANDABLE = "expandable_segments:True"
_SHARES = 16
"""Parts of the batch in which a smaller one is looked for."""
_MARGIN = 0.05
"""Part of the room that an estimated batch leaves: for gradients under way and free pieces."""
_WITH_BATCH = (Category.INPUTS, Category.ACTIVATIONS, Category.OUTPUT_GRADIENTS)
_FREE_WORDS = {TRACEBACK: "what an earlier failure left behind", OUT: "Out and _"}
_STEP_PHASES = ("input", "forward", "backward", "inference")
_FIRST_DIMENSION = re.compile(r" \((\d+)[,)]")


@dataclass(slots=True)
class _Trial:
    """What the remedies look at."""

    case: Case
    held: Sequence[Group]
    phase: str | None
    rerun: Rerun

    def rows(self, *categories: Category) -> Ints:
        """Live allocations of some categories, in the order of birth."""
        case = self.case
        rows = case.books.live(case.index)
        return rows[np.isin(case.books.category[rows], categories)]

    def new_rows(self, *categories: Category) -> Ints:
        """The same, only those of this step."""
        rows = self.rows(*categories)
        return rows[self.case.of_this_step(rows)]

    def bytes_of(self, rows: Ints) -> int:
        """Their block bytes."""
        return int(self.case.books.followed.allocations.block[rows].sum())


def remedies(case: Case, held: Sequence[Group], phase: str | None) -> tuple[Finding, ...]:
    """At most three, the least intrusive first.

    Args:
        case: The failed request.
        held: What lived at that moment.
        phase: The phase of the request.
    """
    trial = _Trial(case, held, phase, Rerun(case))
    found: list[Finding] = []
    for remedy in REMEDIES:
        found += remedy(trial)
        if len(found) >= MOST:
            break
    return tuple(found[:MOST])


def _limit(trial: _Trial) -> Iterator[Finding]:
    case = trial.case
    room = case.reserved + case.free
    if not case.limited or not served_now(case, capacity=room):
        return
    total = case.books.trace.info.total_bytes
    share = math.ceil(100 * (case.reserved + case.wanted) / total) / 100
    code = f"torch.cuda.set_per_process_memory_fraction({share:.2f})" if share < 1 else None
    yield Finding(
        rule="memory_limit",
        title=f"Raise this process's memory limit by at least {format_bytes(case.missing)}",
        evidence=f"The card had {format_bytes(case.free)} free: without the limit it is served.",
        low=case.missing,
        high=case.missing,
        ground="simulated",
        code=code,
    )


def _expandable(trial: _Trial) -> Iterator[Finding]:
    case = trial.case
    if case.settings.expandable_segments or not trial.rerun.served(conf=EXPANDABLE):
        return
    conf = with_conf(case.books.trace, EXPANDABLE)
    yield Finding(
        rule="fragmentation",
        title="Set expandable_segments:True, so that free pieces can be joined",
        evidence="Replayed from the start of the recording with it, the request is served.",
        low=case.missing,
        high=case.missing,
        ground="simulated",
        code=f'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "{conf}"  # before torch is imported',
    )


def _names(trial: _Trial) -> Iterator[Finding]:
    named: dict[str, list[Group]] = {}
    for group in trial.held:
        needless = group.held.older or group.held.category in (
            Category.USER_TENSORS,
            Category.UNKNOWN,
        )
        if group.free is not None and needless:
            named.setdefault(group.free, []).append(group)
    sizes = {name: sum(group.held.block for group in mine) for name, mine in named.items()}
    for name in sorted(named, key=sizes.__getitem__):
        freed = np.concatenate([group.rows for group in named[name]])
        if served_now(trial.case, freed=freed):
            size, what = sizes[name], name
            if name in _FREE_WORDS:
                what = _FREE_WORDS[name]
            yield Finding(
                rule="held_by_name",
                title=f"Free {what} before this line: {format_bytes(size)}",
                evidence="With its blocks free at that moment, the request is served.",
                low=size,
                high=size,
                ground="simulated",
                code=f"del {name}" if name.isidentifier() and what is name else None,
                command=Command(name="free", arguments=(name,)),
            )
            return


def _gradients(trial: _Trial) -> Iterator[Finding]:
    rows = trial.rows(Category.GRADIENTS)
    if trial.phase not in ("input", "forward") or not len(rows):
        return
    if served_now(trial.case, freed=rows):
        size = trial.bytes_of(rows)
        yield Finding(
            rule="gradients_kept",
            title=f"Let the gradients go before the forward: {format_bytes(size)}",
            evidence="They lived through it; without them the request is served. "
            "Not where gradients are accumulated over several batches.",
            low=size,
            high=size,
            ground="simulated",
            code="optimizer.zero_grad()  # before model(...)",
        )


def _inference(trial: _Trial) -> Iterator[Finding]:
    seen = trial.case.refusal
    rows = trial.new_rows(Category.ACTIVATIONS)[:-2]  # a layer's input and output are needed
    if seen is None or not seen.evaluating or not len(rows):
        return
    if served_now(trial.case, freed=rows):
        size = trial.bytes_of(rows)
        yield Finding(
            rule="no_grad",
            title=f"Evaluate without gradients: about {format_bytes(size)}",
            evidence="The model is in eval mode, and its activations are kept for a backward. "
            "Without them the request is served.",
            low=size,
            high=size,
            ground="estimated",
            code="with torch.inference_mode():",
        )


def _others(trial: _Trial) -> Iterator[Finding]:
    case = trial.case
    others = case.books.trace.other_processes
    size = sum(others.values())
    if not size or case.limited or not served_now(case, capacity=case.capacity + size):
        return
    names = ", ".join(sorted(others, key=others.__getitem__, reverse=True)[:2])
    yield Finding(
        rule="other_processes",
        title=f"End the other process on the card: {format_bytes(size)}",
        evidence=f"{names} holds it; with it free the request is served.",
        low=size,
        high=size,
        ground="simulated",
    )


def _batch(trial: _Trial) -> Iterator[Finding]:
    if trial.phase not in _STEP_PHASES or not trial.rerun.faithful:
        return
    share = _share_that_fits(trial)
    grows = _grows_with_batch(trial)
    while share > 0:
        resized = {at: max(int(size * share), 1) for at, size in grows.items()}
        if trial.rerun.served(resized=resized):
            break
        share -= 1 / _SHARES
    batch = _batch_size(trial)
    size = math.floor(share * (batch or _SHARES))
    if size < 1:
        return
    smaller = f"a batch of about {size}, not {batch}" if batch else f"{size}/{_SHARES} of the batch"
    saved = int(trial.bytes_of(trial.new_rows(*_WITH_BATCH)) * (1 - share))
    yield Finding(
        rule="batch_size",
        title=f"Take {smaller}",
        evidence="With inputs, activations and temporaries in proportion, the request is served; "
        "of what would have come after it in the step, room was left for activations "
        "(by the layers still to run) and gradients.",
        low=saved,
        high=saved,
        ground="estimated",
    )


def _share_that_fits(trial: _Trial) -> float:
    """Part of the batch with which the forward fits to its end, and the gradients behind it."""
    case, books = trial.case, trial.case.books
    live = books.live(case.index)
    growing = trial.bytes_of(trial.new_rows(*_WITH_BATCH)) + case.size
    fixed = trial.bytes_of(live) - growing + case.size
    if trial.phase in ("input", "forward") and not len(trial.rows(Category.GRADIENTS)):
        fixed += trial.bytes_of(trial.rows(Category.WEIGHTS))
    activations = trial.new_rows(Category.ACTIVATIONS)
    if trial.phase == "forward":  # backward begins with two gradients of the largest result
        blocks = books.followed.allocations.block[activations]
        growing += 2 * max(case.size, int(blocks.max(initial=0)))
    if trial.phase == "forward" and case.refusal is not None and case.refusal.progress:
        growing += int(trial.bytes_of(activations) * (1 / case.refusal.progress - 1))
    room = (1 - _MARGIN) * (case.capacity - fixed)
    return min(max(room / growing, 0), 1 - 1 / _SHARES)


def _grows_with_batch(trial: _Trial) -> dict[int, int]:
    """Bytes by event where they are in proportion to the batch, the failed request among them."""
    books, case = trial.case.books, trial.case
    a = books.followed.allocations
    born = (a.born >= 0) & (a.born < case.index) & case.of_this_step(np.arange(len(a)))
    of_step = books.phases.named(books.born_in, *_STEP_PHASES)
    temporary = (books.category == Category.TEMPORARIES) & of_step
    grows = born & (np.isin(books.category, _WITH_BATCH) | temporary)
    events = [*a.born[grows].tolist(), case.index]
    return {event: trial.rerun.requested(event) for event in events}


def _batch_size(trial: _Trial) -> int | None:
    """First dimension of the largest input; None if no input was seen."""
    a = trial.case.books.followed.allocations
    rows = trial.new_rows(Category.INPUTS)
    for row in rows[np.argsort(-a.block[rows], kind="stable")].tolist():
        match = _FIRST_DIMENSION.search(trial.case.books.name(row) or "")
        if match:
            return int(match[1])
    return None


def _checkpointing(trial: _Trial) -> Iterator[Finding]:
    seen = trial.case.refusal
    rows = trial.new_rows(Category.ACTIVATIONS)
    if trial.phase != "forward" or (seen is not None and seen.evaluating) or len(rows) < 4:
        return
    # Of n activations, blocks of sqrt(n) keep their inputs, and one block is computed again.
    block = math.ceil(math.sqrt(len(rows)))
    kept = np.zeros(len(rows), bool)
    kept[::block] = True
    kept[-block:] = True
    if served_now(trial.case, freed=rows[~kept]):
        size = trial.bytes_of(rows[~kept])
        yield Finding(
            rule="checkpointing",
            title=f"Compute activations again in backward: about {format_bytes(size)}",
            evidence=f"With checkpoints around blocks of about {block} layers the request is "
            "served; the forward is then computed twice.",
            low=size,
            high=size,
            ground="estimated",
            code="x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        )


REMEDIES: tuple[Callable[[_Trial], Iterator[Finding]], ...] = (
    _limit,
    _names,
    _gradients,
    _inference,
    _expandable,
    _others,
    _batch,
    _checkpointing,
)
