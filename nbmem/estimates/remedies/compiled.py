"""Remedies with torch.compile and its activation memory budget."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, ClassVar

from nbmem.estimates.remedies.base import Remedy, SavingsModel

if TYPE_CHECKING:
    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.virtual.cards import Card

ALREADY = "The program compiles already, so there is nothing to add."
BUDGET = 0.5
_BUDGETED = "activation_memory_budget"


class Compile(Remedy):
    """Compilation of the model in place, in the default mode."""

    key = "compile"
    title = "torch.compile"
    price = (
        "compiles once, when the model is first called (seconds to minutes), and again where "
        "shapes change; sums are rounded otherwise; faster"
    )
    not_applicable = "No module with weights is called in it."
    # Of what forward and backward make, 7 to 21% went in small programs (docs/estimates.md).
    acts = SavingsModel(passing=0.15, waiting=0.15, inputs=0.0)
    group = "compile"
    slow = True
    mode: ClassVar[str] = ""
    """torch.compile's; empty for the default."""

    def __init__(self) -> None:
        super().__init__()
        self._done: dict[int, Any] = {}

    @classmethod
    def missing(cls) -> str | None:
        """Return why torch.compile is not planned here, or None.

        This torch's compiler may be missing, or of a version that is not planned.
        """
        if importlib.util.find_spec("torch._inductor") is None:
            return "This torch has no Inductor, which torch.compile uses."
        import torch

        from nbmem.virtual.patches.compiled.compiler import PLANNED

        if not PLANNED:
            return (
                "torch.compile is planned here from torch 2.11 on; this is "
                f"{torch.__version__.partition('+')[0]}."
            )
        return None

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Compile a model at its first call."""
        if id(module) not in self._done and next(module.parameters(), None) is not None:
            self._done[id(module)] = module
            self._compile(module)
        return args, kwargs

    def _compile(self, model: Any) -> None:
        from torch._dynamo import OptimizedModule

        if any(isinstance(m, OptimizedModule) or m._compiled_call_impl for m in model.modules()):  # noqa: SLF001 - no other way to see it
            self.refuse(ALREADY)
            return
        why = self.missing()
        if why is not None:
            self.refuse(why)
            return
        model.compile(**({"mode": self.mode} if self.mode else {}))
        self.applied += 1

    @property
    def unapplied(self) -> str | None:
        """The reason why it did nothing.

        A function that could not be planned ran eagerly, which is no result of the remedy.
        """
        from nbmem import virtual
        from nbmem.virtual.warnings import is_unplanned

        gpu = virtual.active()
        unplanned = next((n for n in gpu.notes if is_unplanned(n)), None) if gpu else None
        return unplanned or super().unapplied

    def code_of(self, card: Card) -> str:
        """Return the line that compiles in place.

        The keys of the state dict stay as they are.
        """
        others = len(self._done) - 1
        more = f"  # and the {others} other models that are called" if others > 0 else ""
        mode = f'mode="{self.mode}"' if self.mode else ""
        return f"{self.own.model}.compile({mode}){more}"

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the line after the model is made, if there is one model."""
        return len(self._done) == 1 and edit.insert_after_model(self.code_of(card))


class CompileGraphs(Compile):
    """Compilation with CUDA graphs, which keep a step's memory."""

    key = "compile_graphs"
    title = "torch.compile, reduce-overhead"
    price = (
        "compiles once and again as torch.compile does, then records CUDA graphs in the first "
        "steps; what they take stays theirs, inputs are copied, and a step overwrites what the one "
        "before returned; faster where kernels are small"
    )
    # The pools of graphs retain what the plan saves (docs/estimates.md).
    acts = SavingsModel(passing=0.0, waiting=0.0, inputs=0.0)
    mode = "reduce-overhead"


class ActivationBudget(Remedy):
    """An activation memory budget of 0.5 for compiled regions.

    They save less for backward: halfway from the fastest partition to their inputs alone.

    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_functorch/config.py
    """

    key = "budget"
    title = "activation memory budget 0.5"
    price = (
        "compiled backward computes again what costs least arithmetic, matrix products among it; "
        "compiles longer"
    )
    code = f"import torch._functorch.config\ntorch._functorch.config.{_BUDGETED} = {BUDGET}"
    not_applicable = "The program compiles nothing."
    # A third of what forward leaves for backward, and more (docs/estimates.md).
    acts = SavingsModel(passing=0.0, waiting=0.4, inputs=0.0)
    of_compiled = True

    def __init__(self) -> None:
        super().__init__()
        self._before: float | None = None

    def prepare(self) -> None:
        """Set the partitioner's budget before a region is compiled."""
        from torch._functorch import config

        self._before = getattr(config, _BUDGETED)
        setattr(config, _BUDGETED, BUDGET)
        self.applied += 1

    def finish(self) -> None:
        """Restore the previous budget."""
        if self._before is not None:
            from torch._functorch import config

            setattr(config, _BUDGETED, self._before)

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the setting before anything is compiled."""
        return edit.insert_at_top(self.code_of(card))
