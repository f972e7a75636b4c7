"""Remedies for the optimizer: less state, or fewer temporaries in its step."""

from __future__ import annotations

import importlib.util
from typing import Any

from nbmem.estimates.remedies.base import Remedy

ADAMS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""torch's optimizers with a fused step on CUDA."""


def _one_of(optimizer: Any, names: tuple[str, ...]) -> bool:
    import torch

    kinds = tuple(getattr(torch.optim, name) for name in names if hasattr(torch.optim, name))
    return isinstance(optimizer, kinds)


class PlainSGD(Remedy):
    """No state at all."""

    key = "sgd"
    title = "SGD instead of Adam"
    price = "another optimizer: its learning rate has to be found anew"
    code = "optimizer = torch.optim.SGD(model.parameters(), lr=lr)"
    group = "optimizer"
    nothing = "No optimizer of the Adam family is made in it."

    def made_optimizer(self, optimizer: Any) -> None:
        """Turn an Adam into an SGD without momentum, and drop its state."""
        import torch

        if _one_of(optimizer, ADAMS):
            _become(optimizer, torch.optim.SGD(_dummy(), lr=1e-3))
            self.applied += 1


class EightBit(Remedy):
    """Adam's state in 8 bits."""

    key = "adam8bit"
    title = "Adam with 8-bit state"
    price = "needs bitsandbytes; state rounded to 8 bits in blocks of 256"
    code = "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)"
    group = "optimizer"
    nothing = "No optimizer of the Adam family is made in it."

    def prepare(self) -> None:
        """It is a real choice only where its package is."""
        if importlib.util.find_spec("bitsandbytes") is None:
            self.refuse("bitsandbytes is not installed in this environment.")

    def made_optimizer(self, optimizer: Any) -> None:
        """The package's own class makes its state; its kernel is an operator without a result.

        So the virtual card takes for it what it asks torch for (seen with 0.50.2). A release that
        hands addresses to a C library instead fails, and the plan says with what.
        """
        if self.why_not is None and _one_of(optimizer, ADAMS):
            package = importlib.import_module("bitsandbytes")
            _become(optimizer, package.optim.AdamW8bit(_dummy()))
            self.applied += 1


def _dummy() -> list[Any]:
    import torch

    return [torch.nn.Parameter(torch.empty(0))]


def _become(optimizer: Any, other: Any) -> None:
    """Change an optimizer into another; its groups keep their parameters and learning rate."""
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
    optimizer._patch_step_function()  # noqa: SLF001 - torch's own way to give a class its hooks


class Fused(Remedy):
    """One kernel for the whole step."""

    key = "fused"
    title = "fused optimizer"
    price = "none; faster"
    code = "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)"
    group = "optimizer"
    nothing = "Its optimizers have no fused form, or are fused already."

    def made_optimizer(self, optimizer: Any) -> None:
        """Turn the switch of each group."""
        if not _one_of(optimizer, FUSED):
            return
        for group in (optimizer.defaults, *optimizer.param_groups):
            if not group.get("fused") and not group.get("differentiable"):
                group.update(fused=True, foreach=False)
                self.applied += 1
        optimizer._step_supports_amp_scaling = True  # noqa: SLF001 - as its __init__ does for fused=True


class NoForeach(Remedy):
    """One parameter after the other."""

    key = "no_foreach"
    title = "foreach off in the optimizer"
    price = "many small kernels instead of a few: a slower step"
    code = "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, foreach=False)"
    group = "optimizer"
    nothing = "Its optimizers do not use foreach."

    def made_optimizer(self, optimizer: Any) -> None:
        """Turn the switch of each group that leaves it to torch, or has it on."""
        for group in (optimizer.defaults, *optimizer.param_groups):
            if "foreach" in group and group["foreach"] is not False and not group.get("fused"):
                group["foreach"] = False
                self.applied += 1
