"""Higher-order operators such as `cond` and `scan` on a card.

Their eager kernels reject a dispatch mode that is on, and the card's mode is on for every operator.
It is hidden from their check.

To see what a function returns, they trace it with every mode switched off. The card's mode stays on
there, because the copies of the arguments are made on the card.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_higher_order_ops/utils.py
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from torch import _C
from torch.utils import _python_dispatch

from nbmem.virtual.patches.patcher import Patch

if TYPE_CHECKING:
    from nbmem.virtual.dispatch.card_mode import CardMode

_ASKING = "_get_current_dispatch_mode"
_TRACING = "torch._higher_order_ops.utils"
_COPY, _TRACER = "_from_fun", "_maybe_reenter_make_fx"
"""A function that copies one argument, and one that wraps a function as one that traces it."""
_KERNELS = ("cond", "invoke_subgraph", "strict_mode", "base_hop", "scan")


def higher_order_patches(mode: CardMode) -> list[Patch]:
    """Return patches that hide the card's mode from these operators.

    Each of their modules has a name of its own for torch's query of the current mode.
    """
    original_current: Any = getattr(_python_dispatch, _ASKING)

    def current() -> Any:
        found = original_current()
        return None if found is mode else found

    modules = [sys.modules.get(f"torch._higher_order_ops.{name}") for name in _KERNELS]
    patches = [Patch(module, _ASKING, current) for module in modules if hasattr(module, _ASKING)]
    tracing = sys.modules.get(_TRACING)
    if hasattr(tracing, _COPY) and hasattr(tracing, _TRACER):
        patches += _tracing_patches(mode, tracing)
    return patches


def _tracing_patches(mode: CardMode, tracing: Any) -> list[Patch]:
    original_tracer: Any = getattr(tracing, _TRACER)

    @wraps(original_tracer)
    def tracer(*args: Any, **kwargs: Any) -> Any:
        return _in_card_mode(mode, original_tracer(*args, **kwargs))

    return [
        Patch(tracing, _COPY, _in_card_mode(mode, getattr(tracing, _COPY))),
        Patch(tracing, _TRACER, tracer),
    ]


def _in_card_mode(mode: CardMode, original: Any) -> Any:
    """Return a function that runs in the card's mode if no mode is on."""

    @wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        if _C._len_torch_dispatch_stack():
            return original(*args, **kwargs)
        with mode:
            return original(*args, **kwargs)

    return called
