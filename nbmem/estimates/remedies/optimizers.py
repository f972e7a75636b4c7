"""Remedies for the optimizer: less state, or fewer temporaries."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nbmem.estimates.remedies.base import Remedy, SavingsModel

if TYPE_CHECKING:
    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.virtual.cards import Card

ADAMS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""torch's optimizers with a fused step on CUDA."""


def _one_of(optimizer: Any, names: tuple[str, ...]) -> bool:
    import torch

    kinds = tuple(getattr(torch.optim, name) for name in names if hasattr(torch.optim, name))
    return isinstance(optimizer, kinds)


class _OptimizerChange(Remedy):
    """A remedy that changes the optimizer in the one line that makes it."""

    group = "optimizer"
    not_applicable = "The program makes no optimizer of the Adam family."

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str, None] = {}
        self._switch: dict[str, Any] = {}

    @classmethod
    def takes(cls, optimizer: Any) -> bool:
        """Return whether it would change an optimizer: one of the Adam family."""
        return _one_of(optimizer, ADAMS)

    @classmethod
    def idle(cls, models: Iterable[Any], optimizers: Iterable[Any]) -> bool:
        """Return whether it would change none of the optimizers."""
        return not any(cls.takes(optimizer) for optimizer in optimizers)

    def code_of(self, card: Card) -> str:
        """Return a line for each different optimizer."""
        return "\n".join(self._lines)

    def put(self, edit: Edit, card: Card) -> bool:
        """Add the changed keyword, or replace the optimizer's line."""
        if len(self._lines) != 1:
            return False
        for name, value in self._switch.items():
            return edit.with_keyword(name, repr(value))
        return edit.replace_optimizer(self.code_of(card))

    def changes(self, optimizer: Any, kind: str = "", **changed: Any) -> None:
        """Record the line that makes the changed optimizer.

        An optimizer of the same class retains its arguments.
        """
        self.applied += 1
        made = kind or name_of(type(optimizer))
        kept = {"lr": optimizer.defaults["lr"]} if kind else given(optimizer)
        words = "".join(f", {name}={value!r}" for name, value in {**kept, **changed}.items())
        own = self.own
        self._lines[f"{own.optimizer} = {made}({own.model}.parameters(){words})"] = None
        if not kind:
            self._switch = changed


def name_of(kind: type) -> str:
    """Return an optimizer class's name as a program writes it.

    The program has imported torch.
    """
    return f"torch.optim.{kind.__name__}" if kind.__module__.startswith("torch.") else kind.__name__


def given(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's arguments that differ from its class's defaults."""
    usual = inspect.signature(type(optimizer)).parameters
    return {
        name: value
        for name, value in optimizer.defaults.items()
        if name in usual and isinstance(value, (int, float, tuple)) and value != usual[name].default
    }


class PlainSGD(_OptimizerChange):
    """SGD without momentum, which has no state."""

    key = "sgd"
    title = "plain SGD"
    price = "another optimizer: its learning rate has to be found anew"
    acts = SavingsModel(state=1.0, stepping=1.0)

    def made_optimizer(self, optimizer: Any) -> None:
        """Turn an Adam into an SGD without momentum, and drop its state."""
        import torch

        if self.takes(optimizer):
            self.changes(optimizer, "torch.optim.SGD")
            _become(optimizer, torch.optim.SGD(_dummy(), lr=1e-3))


class EightBit(_OptimizerChange):
    """Adam's state in 8 bits."""

    key = "adam8bit"
    title = "8-bit Adam"
    price = "needs bitsandbytes; state rounded to 8 bits in blocks of 256"
    acts = SavingsModel(state=0.74, stepping=1.0)

    @classmethod
    def missing(cls) -> str | None:
        """Return that bitsandbytes is not installed; None if it is."""
        if importlib.util.find_spec("bitsandbytes") is None:
            return "bitsandbytes is not installed in this environment."
        return None

    def prepare(self) -> None:
        """Refuse if bitsandbytes is not installed."""
        why = self.missing()
        if why is not None:
            self.refuse(why)

    def made_optimizer(self, optimizer: Any) -> None:
        """Turn an Adam into bitsandbytes' AdamW8bit.

        The package's own class makes its state, and its kernel is an operator without a result. So
        its torch allocations are all that the virtual card counts (tested with 0.50.2). A release
        that passes addresses to a C library instead fails, and the plan shows the error.
        """
        if self.why_not is None and self.takes(optimizer):
            package = importlib.import_module("bitsandbytes")
            self.changes(optimizer, "bitsandbytes.optim.AdamW8bit")
            _become(optimizer, package.optim.AdamW8bit(_dummy()))


def _dummy() -> list[Any]:
    import torch

    return [torch.nn.Parameter(torch.empty(0))]


def _become(optimizer: Any, other: Any) -> None:
    """Change an optimizer into another; its groups keep parameters and lr."""
    kept = ("param_groups", "state")
    lr = optimizer.defaults.get("lr", other.defaults["lr"])
    optimizer.__class__ = type(other)
    optimizer.__dict__.update({n: v for n, v in vars(other).items() if n not in kept})
    optimizer.defaults = {**other.defaults, "lr": lr}
    optimizer.state.clear()
    for group in optimizer.param_groups:
        own = {name: group[name] for name in ("params", "lr", "initial_lr") if name in group}
        group.clear()
        group.update({**other.defaults, **own})
    optimizer._patch_step_function()  # noqa: SLF001 - torch itself adds a class's hooks with it


class Fused(_OptimizerChange):
    """The fused form of an optimizer: one kernel for the whole step."""

    key = "fused"
    title = "fused optimizer"
    price = "none; faster"
    not_applicable = "Its optimizers have no fused form, or are fused already."
    acts = SavingsModel(state=0.0, stepping=1.0)

    @classmethod
    def takes(cls, optimizer: Any) -> bool:
        """Return whether an optimizer has a fused form and is in another."""
        switched = optimizer.defaults.get("fused") or optimizer.defaults.get("differentiable")
        return _one_of(optimizer, FUSED) and not switched

    def made_optimizer(self, optimizer: Any) -> None:
        """Set `fused=True` in each group."""
        if not self.takes(optimizer):
            return
        self.changes(optimizer, fused=True)
        for group in (optimizer.defaults, *optimizer.param_groups):
            group.update(fused=True, foreach=False)
        optimizer._step_supports_amp_scaling = True  # noqa: SLF001 - as its __init__ does for fused=True


class NoForeach(_OptimizerChange):
    """An optimizer step over one parameter after the other."""

    key = "no_foreach"
    title = "foreach off"
    price = "many small kernels instead of a few: a slower step"
    not_applicable = "Its optimizers do not use foreach."
    acts = SavingsModel(stepping=0.5)

    @classmethod
    def takes(cls, optimizer: Any) -> bool:
        """Return whether an optimizer's foreach is on or left to torch."""
        switch = optimizer.defaults.get("foreach", False)
        return switch is not False and not optimizer.defaults.get("fused")

    def made_optimizer(self, optimizer: Any) -> None:
        """Set `foreach=False` in each group."""
        if not self.takes(optimizer):
            return
        self.changes(optimizer, foreach=False)
        for group in (optimizer.defaults, *optimizer.param_groups):
            group["foreach"] = False
