"""What torch's eager kernels of `cond`, `scan` and their kin take for a mistake: a mode that is on.

The card's mode is on for every operator, so it is none of those that they ask for.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch.utils import _python_dispatch

from nbmem.virtual.patches.patcher import Patch

if TYPE_CHECKING:
    from nbmem.virtual.operators.dispatch import CardMode

_ASKING = "_get_current_dispatch_mode"
_KERNELS = ("cond", "invoke_subgraph", "strict_mode", "base_hop", "scan")


def function_patches(mode: CardMode) -> list[Patch]:
    """The question, by the name that each of them has for it."""
    true_current: Any = getattr(_python_dispatch, _ASKING)

    def current() -> Any:
        found = true_current()
        return None if found is mode else found

    modules = [sys.modules.get(f"torch._higher_order_ops.{name}") for name in _KERNELS]
    return [Patch(module, _ASKING, current) for module in modules if hasattr(module, _ASKING)]
