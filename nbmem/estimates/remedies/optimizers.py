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

        if not _one_of(optimizer, ADAMS):
            return
        sgd = torch.optim.SGD([torch.nn.Parameter(torch.empty(0))], lr=1e-3)
        _become(optimizer, torch.optim.SGD, sgd.defaults)
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
        """Its kernels cannot run without a card, so a stand-in takes the memory that it takes."""
        if self.why_not is None and _one_of(optimizer, ADAMS):
            _become(optimizer, _eight_bit_class(), {"lr": 1e-3})
            self.applied += 1


def _become(optimizer: Any, kind: type, defaults: dict[str, Any]) -> None:
    """Change an optimizer's class; its groups keep their parameters and learning rate."""
    optimizer.__class__ = kind
    optimizer.state.clear()
    optimizer.defaults = {**defaults, "lr": optimizer.defaults.get("lr", 1e-3)}
    for group in optimizer.param_groups:
        kept = {name: group[name] for name in ("params", "lr", "initial_lr") if name in group}
        group.clear()
        group.update({**defaults, **kept})
    optimizer._patch_step_function()  # noqa: SLF001 - torch's own way to give a class its hooks


def _eight_bit_class() -> type:
    import torch

    class AdamW8bit(torch.optim.Optimizer):  # type: ignore[misc]
        """The memory of bitsandbytes' optimizer with two states.

        https://github.com/bitsandbytes-foundation/bitsandbytes/blob/0.49.0/bitsandbytes/optim/optimizer.py
        (Optimizer2State.init_state): two tensors of bytes and a float32 scale for each block of
        256; tensors below 4096 elements keep float32. Its kernels work in place.
        """

        def step(self, closure: Any = None) -> Any:
            """Make the state that is missing."""
            loss = None if closure is None else closure()
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None and p not in self.state:
                        self.state[p] = _state(p)
            return loss

    def _state(p: Any) -> dict[str, Any]:
        if p.numel() < 4096:
            return {name: torch.zeros_like(p, dtype=torch.float32) for name in ("state1", "state2")}
        blocks = -(-p.numel() // 256)
        state: dict[str, Any] = {}
        for number in (1, 2):
            state[f"state{number}"] = torch.zeros_like(p, dtype=torch.uint8)
            state[f"absmax{number}"] = torch.zeros(blocks, device=p.device)
        return state

    return AdamW8bit


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
