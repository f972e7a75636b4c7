"""Higher-order operators: `torch.cond`, `while_loop`, `scan` and `map`.

Their arguments include functions.
"""

from __future__ import annotations

from typing import Any

from torch import _C
from torch._ops import HigherOrderOperator

_EAGER = _C.DispatchKey.CompositeExplicitAutograd


def is_higher_order(func: Any) -> bool:
    """Return whether an operator takes functions as arguments."""
    return isinstance(func, HigherOrderOperator)


def call_functions(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Run torch's own eager kernel, whose functions call the card's operators.

    Raises:
        NotImplementedError: The operator has no eager kernel, on any device.
    """
    if _C._len_torch_dispatch_stack():  # Torch's own tracing modes are left.
        return func(*args, **kwargs)
    kernel = func.py_kernels.get(_EAGER)
    if kernel is None:
        raise NotImplementedError(f"{func.name()} has no kernel for eager mode on a card.")
    with mode:
        return kernel(*args, **kwargs)
