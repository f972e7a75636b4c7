"""Estimate how the first training step goes on after a failed request.

There is no earlier step to repeat. The rest of the forward is proportional to the layers that have
not run. The backward frees activations in reverse order, and allocates a gradient for each and for
each weight. The optimizer allocates its state, and a copy of the weights as its `foreach` kernels
do. One more step follows, with that state. Where it is unknown what lives, the estimate is higher.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_parts import BASE, FROZEN, parts_by_name
from nbmem.report.analysis.library_calls import is_in_trainer
from nbmem.report.analysis.oom.continuations.continuation import (
    LIVE,
    NEVER,
    ONCE,
    WITH_BATCH,
    Continuation,
    FutureBlock,
    grows_with_batch,
)
from nbmem.report.analysis.optimizer_state import state_sizes
from nbmem.report.analysis.program_names import largest_model

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.failed_request import FailedRequest

HALF_WAY = 0.5
"""Assumed share of a forward that has run, if the progress is unknown."""
MIN_PROGRESS = 0.02
"""Share of a forward below which its rest is not estimated from what has run."""
_ADAM = 2
"""Numbers that the optimizer of transformers' Trainer keeps for each weight. No name leads to it
before its first step."""
MAX_BLOCKS = 1_000
_FROZEN = (BASE, FROZEN)
"""Beginnings of the names of weights' parts that get no gradient."""
_MATRIX = re.compile(r"weight \((\d+), (\d+)\)")
_SHAPE = re.compile(r" \(([\d, ]+)\) (\w+)")


def estimated_step(case: FailedRequest, phase: str | None) -> Continuation | None:
    """Estimate what follows if it is a step, or None.

    None if the request failed before a forward, outside of a step, or so early in a forward that
    the rest of it cannot be estimated from what has run. An evaluation in eval mode with gradients
    is a forward alone.

    Args:
        case: The failed request.
        phase: The phase in which it was made.
    """
    seen = case.refusal
    if phase not in ("forward", "backward", "optimizer"):
        return None
    if phase == "forward" and seen is not None and (seen.progress or HALF_WAY) < MIN_PROGRESS:
        return None
    return _TrainingStep(case, phase).continuation()


class _TrainingStep:
    """Builds the blocks of a step's rest, and of one more step."""

    def __init__(self, case: FailedRequest, phase: str) -> None:
        self.case, self.phase, self.ledger = case, phase, case.card_ledger
        self.evaluating = case.refusal is not None and case.refusal.evaluating
        a = self.ledger.allocations
        made = int(np.searchsorted(a.allocated_at, case.index))
        rows = np.arange(made)
        loaded = self.ledger.phases.named(self.ledger.born_in[:made], "load")  # not again
        new = case.of_this_step(rows) & (a.allocated_at[:made] >= 0) & ~loaded
        self.new = rows[new].tolist()
        of_batch = grows_with_batch(self.ledger)
        live = rows[a.freed[:made] >= case.index].tolist()
        self.blocks: dict[int, FutureBlock] = {}
        self.kinds: dict[int, Category] = {}
        self.recorded = {
            row: FutureBlock(
                LIVE,
                NEVER,
                int(a.requested[row]),
                int(a.stream[row]),
                row,
                saved=self.ledger.category[row] == Category.ACTIVATIONS,
                of_batch=bool(of_batch[row]),
            )
            for row in {*live, *self.new}
        }
        for row in live:
            self._put(row, self.recorded[row])
        self.at, self.step, self.count = 0, 0, made
        facts = self.ledger.session.facts
        self.optimizers = facts.get("optimizers") or []
        self.models = bool(facts.get("modules"))
        self.in_trainer = is_in_trainer(case)
        self.weights = self._weights()

    def continuation(self) -> Continuation:
        """Build the blocks of this step's rest and of the next step."""
        self._finish(self._failed_request(), [row for row in self.new if row in self.blocks])
        self.step, end = 1, self.at
        copies = self._step_so_far()
        self._finish(self._failed_request(), copies)
        blocks = tuple(self.blocks.values())
        since = self.at - end
        return Continuation(blocks=blocks, period=self.at, steps=1, since=since, estimated=True)

    # --- blocks

    def _put(self, key: int, block: FutureBlock) -> None:
        if block.row >= 0:
            self.kinds[key] = Category(int(self.ledger.category[block.row]))
        self.blocks[key] = block._replace(kind=self.kinds.get(key, block.kind))

    def _alloc(self, like: FutureBlock, kind: Category | None = None) -> int:
        self.at, self.count = self.at + 1, self.count + 1
        self._put(
            self.count,
            like._replace(requested_at=float(self.at - 1), freed_at=NEVER, step=self.step),
        )
        if kind is not None:
            self.kinds[self.count] = kind
            self.blocks[self.count] = self.blocks[self.count]._replace(kind=kind)
        return self.count

    def _new(self, size: int, kind: Category, *, saved: bool = False, behind: bool = False) -> int:
        like = FutureBlock(0, NEVER, size, self.case.stream, -1, saved=saved, behind=behind)
        return self._alloc(like._replace(of_batch=kind in WITH_BATCH), kind)

    def _free(self, keys: Iterable[int]) -> None:
        for key in keys:
            if self.blocks[key].freed_at == NEVER:
                self.blocks[key] = self.blocks[key]._replace(freed_at=self.at)
                self.at += 1

    def _live(self, *kinds: Category) -> list[int]:
        return [k for k, b in self.blocks.items() if b.freed_at == NEVER and self.kinds[k] in kinds]

    # --- what the program does

    def _failed_request(self) -> int:
        kind = {
            "forward": Category.ACTIVATIONS,
            "backward": Category.OUTPUT_GRADIENTS,
        }.get(self.phase, Category.OPTIMIZER_STATE)
        return self._new(self.case.size, kind, saved=self.phase == "forward")

    def _step_so_far(self) -> list[int]:
        """Repeat what the step has done before the failed request."""
        a, copies = self.ledger.allocations, dict[int, int]()
        events = [(int(a.allocated_at[row]), row) for row in self.new]
        events += [(int(a.freed[row]), row) for row in self.new if a.freed[row] < self.case.index]
        for _, row in sorted(events):
            kind = Category(int(self.ledger.category[row]))
            if row in copies:
                self._free([copies[row]])
            elif kind not in ONCE:
                if kind == Category.GRADIENTS:
                    self._free(self._live(Category.GRADIENTS))
                old = [row] if row in self.blocks and not self.blocks[row].saved else []
                copies[row] = self._alloc(self.recorded[row])
                self._free(old)  # its variable is assigned anew
        return [key for key in copies.values() if self.blocks[key].freed_at == NEVER]

    def _finish(self, failed: int, of_step: list[int]) -> None:
        """Simulate a step from its failed request to its end."""
        saved = [key for key in of_step if self.blocks[key].saved]
        if self.phase == "forward":
            saved += [failed, *self._forward(sum(self.blocks[k].size for k in saved), len(saved))]
            trains = self.step and not self.evaluating
            self._free(self._live(Category.GRADIENTS) if trains else ())
        if self.evaluating:
            self._free(saved)
        elif self.phase != "optimizer":
            self._backward(saved)
        self._free([key for key in of_step if self.kinds[key] == Category.TEMPORARIES])
        if not self.evaluating:
            self._optimizer()

    def _forward(self, size: int, count: int) -> list[int]:
        """Allocate what the layers still to run save, and the loss."""
        refusal = self.case.refusal
        part = (refusal.progress if refusal is not None else None) or HALF_WAY
        if len(self.optimizers) > 1:  # as in a GAN: each model is called, one of them twice
            part /= 2 * len(self.optimizers)
        behind = refusal is not None and refusal.layer is None and self.models
        left = 0.0 if behind and len(self.optimizers) < 2 else 1 / part - 1
        count = min(math.ceil((count + 1) * left), MAX_BLOCKS)
        each = int((size + self.case.size) * left / max(1, count))
        made = [self._new(each, Category.ACTIVATIONS, saved=True) for _ in range(count)]
        size, loss = self._result_bytes(), 1 + (left > 0)  # the result, and the loss's own copy
        return made + [
            self._new(size, Category.ACTIVATIONS, saved=True, behind=True) for _ in range(loss)
        ]

    def _backward(self, saved: list[int]) -> None:
        """Free activations in reverse order, and make gradients."""
        wanted = Counter(self.weights)
        wanted.subtract(self.blocks[key].size for key in self._live(Category.GRADIENTS))
        sizes = [size for size in reversed(self.weights) for _ in range(wanted.pop(size, 0))]
        before = self._live(Category.OUTPUT_GRADIENTS)
        for number, key in enumerate(reversed(saved), 1):
            size, behind = self.blocks[key].size, self.blocks[key].behind
            own = [self._new(size, Category.OUTPUT_GRADIENTS, behind=behind) for _ in range(2)]
            self._free([own[0], *before])
            before = own[1:]
            while sizes and len(sizes) * len(saved) > len(self.weights) * (len(saved) - number):
                self._new(sizes.pop(0), Category.GRADIENTS)
            self._free([key])
        for size in sizes:
            self._new(size, Category.GRADIENTS)
        self._free(before)

    def _optimizer(self) -> None:
        """Allocate the state that is still missing, and temporaries."""
        there = Counter(self.blocks[key].size for key in self._live(Category.OPTIMIZER_STATE))
        for optimizer in self.optimizers:
            for size in state_sizes(optimizer, every=True):
                if there[size] > 0:
                    there[size] -= 1
                else:
                    self._new(size, Category.OPTIMIZER_STATE)
        if not self.optimizers and self.in_trainer:
            for size in [size for size in self.weights for _ in range(_ADAM)]:
                if there[size] > 0:
                    there[size] -= 1
                else:
                    self._new(size, Category.OPTIMIZER_STATE)
        for optimizer in self.optimizers:
            if not optimizer["switches"].get("fused"):
                sizes = optimizer["parameters"]
                self._free([self._new(size, Category.WORKSPACE) for size in sizes])

    # --- sizes

    def _weights(self) -> list[int]:
        """Return the bytes of what gets a gradient, in order."""
        sizes = [size for optimizer in self.optimizers for size in optimizer["parameters"]]
        if sizes:
            return sizes
        parts = parts_by_name(self.ledger.session.facts)
        live = [self.blocks[key] for key in self._live(Category.WEIGHTS)]
        named = ((one, parts.get(int(self.ledger.names[one.row]), "")) for one in live)
        trained = [one.size for one, part in named if not part.startswith(_FROZEN)]
        return trained or [one.size for one in live]

    def _result_bytes(self) -> int:
        """Return the bytes of a model's result by its last matrix, float32.

        A result has one row for each sample, or for each place of a sequence. The layer that
        scores words may share its matrix with the first layer.
        """
        head = (largest_model(self.ledger.session) or {}).get("head")
        widths = (
            [int(head["words"])]
            if head
            else [
                int(match[1])
                for key in self._live(Category.WEIGHTS)
                if (match := _MATRIX.search(self.ledger.name(key) or ""))
            ]
        )
        shapes = [
            ([int(size) for size in match[1].replace(",", " ").split()], match[2])
            for row in self.new
            if self.ledger.category[row] == Category.INPUTS
            and (match := _SHAPE.search(self.ledger.name(row) or ""))
        ]
        rows = max((_rows_of(shape, dtype) for shape, dtype in shapes), default=1)
        return 4 * rows * widths[-1] if widths else 4


def _rows_of(shape: list[int], dtype: str) -> int:
    """Count a batch's rows: tokens, places of sequences, or samples."""
    if dtype.startswith("int"):
        return math.prod(shape)
    return math.prod(shape[:-1]) if len(shape) < 4 else shape[0]
