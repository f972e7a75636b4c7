"""Operators of other libraries, whose Python host code runs on the card.

Host code allocates the memory that it allocates on a card, scratch included, and launches kernels
that do nothing. Code that calls a compiled library or a driver cannot run. The operator's fake
implementation, which makes results alone, then replaces it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.core.errors import UsageError
from nbmem.core.runtime.bytecode import raises_here
from nbmem.virtual.operator_model.operator import Executor, Operator
from nbmem.virtual.warnings import host_code_failed

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

_CUDA = _C.DispatchKeySet(_C.DispatchKey.CUDA)
_EXPLICIT = "CompositeExplicitAutograd"
_META = _C.DispatchKey.Meta


def is_python(func: Any) -> bool:
    """Return whether an operator's CUDA kernel is registered from Python.

    torch/library.py lists such kernels as "library/operator/key", by Library.impl and by
    custom_op.
    """
    schema = func._schema
    library, _, name = schema.name.partition("::")
    if schema.overload_name:
        name = f"{name}.{schema.overload_name}"
    known: set[str] = torch.library._impls
    if f"{library}/{name}/CUDA" in known:
        return True
    return f"{library}/{name}/{_EXPLICIT}" in known and not func.has_kernel_for_dispatch_key(
        _C.DispatchKey.CUDA
    )


def run_python(executor: Executor, call: OperatorCall) -> Any:
    """Run the operator's own host code on the card.

    Returns NotImplemented if its kernel is not Python, or if only its fake implementation can
    run.
    """
    if not is_python(call.func):
        return NotImplemented
    try:
        with executor:
            return call.func.redispatch(_CUDA, *call.args, **call.kwargs)
    except (torch.OutOfMemoryError, UsageError):
        raise
    except Exception as err:
        if _is_refusal(err) or not call.func.has_kernel_for_dispatch_key(_META):
            raise
        call.gpu.note(host_code_failed(call.func._schema.name, err))
    return NotImplemented


def _is_refusal(err: Exception) -> bool:
    """Return whether host code itself refuses a call, by `raise`.

    It would do so on a card, with the same message.
    """
    traceback = err.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or not isinstance(err, (ValueError, NotImplementedError)):
        return False
    return raises_here(traceback.tb_frame.f_code, traceback.tb_lasti)


def by_rule(who: str, name: str, host_code: Callable[..., Any]) -> Operator:
    """Return an operator whose host code is described by a package's rule."""
    return Operator((name,), composite=with_usage_errors(who, name, host_code), source=who)


def with_usage_errors(who: str, name: str, host_code: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a rule so that mistakes in its code raise UsageError.

    A kernel's own refusals pass: RuntimeError, ValueError and NotImplementedError.
    """

    @functools.wraps(host_code)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return host_code(*args, **kwargs)
        except (RuntimeError, ValueError, NotImplementedError, UsageError):
            raise
        except Exception as err:  # noqa: BLE001 - another library's code may raise anything
            raise UsageError(
                f"The rule for {name} that {who} brings for virtual GPUs failed "
                f"({type(err).__name__}: {str(err)[:200]}). Another version of it may have it "
                "right; without the rule the operator's fake implementation would answer."
            ) from None

    return run
