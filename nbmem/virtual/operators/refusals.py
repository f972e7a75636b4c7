"""Calls that a card's kernels refuse and torch's shape rules let pass, in torch's own words.

Shape rules ask for shapes and, but for few operators, not for types. Without these checks a program
that mixes types by mistake would run here and fail on the card that was rented for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.devices import CPU
from nbmem.virtual.tensors.calls import operator_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbmem.virtual.tensors.calls import Call

aten = torch.ops.aten
_SHORT = {
    torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float",
    torch.float64: "Double", torch.int8: "Char", torch.uint8: "Byte", torch.int16: "Short",
    torch.int32: "Int", torch.int64: "Long", torch.bool: "Bool", torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}  # fmt: skip
_IN_CPP = {
    torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16", torch.float32: "float",
    torch.float64: "double", torch.int8: "signed char", torch.uint8: "unsigned char",
    torch.int16: "short int", torch.int32: "int", torch.int64: "long int", torch.bool: "bool",
    torch.complex64: "c10::complex<float>", torch.complex128: "c10::complex<double>",
}  # fmt: skip
_ASKED_MOST = 1 << 24
"""Elements up to which the CPU is asked what is wrong with shapes."""


def _short(tensor: torch.Tensor) -> str:
    return _SHORT.get(tensor.dtype, str(tensor.dtype))


def _in_cpp(tensor: torch.Tensor) -> str:
    return _IN_CPP.get(tensor.dtype, str(tensor.dtype))


def _numbers(tensor: torch.Tensor) -> None:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise RuntimeError(f"\"addmm_cuda\" not implemented for '{_short(tensor)}'")


def _product(call: Call) -> None:
    left, right = call.args[:2]
    if left.dtype is not right.dtype:
        raise RuntimeError(
            "expected mat1 and mat2 to have the same dtype, but got: "
            f"{_in_cpp(left)} != {_in_cpp(right)}"
        )
    _numbers(left)


def _product_with_bias(call: Call) -> None:
    bias, left, right = call.args[:3]
    for name, other in (("mat1", left), ("self", bias)):
        if other.dtype is not right.dtype:
            raise RuntimeError(
                f"{name} and mat2 must have the same dtype, but got {_short(other)} and "
                f"{_short(right)}"
            )
    _numbers(left)


def _products(call: Call) -> None:
    left, right = call.args[:2]
    if left.dtype is not right.dtype:
        raise RuntimeError(f"expected scalar type {_short(left)} but found {_short(right)}")


def _with_vector(call: Call) -> None:
    *_, left, right = call.args[:2] if call.func is aten.mv.default else call.args[:3]
    if left.dtype is not right.dtype:
        names = _short(right), _short(left), _short(right)
        raise RuntimeError(
            "addmv input tensors must have the same dtype, but got {}, {}, and {}".format(*names)
        )


def _layer_norm(call: Call) -> None:
    source, weight = call.args[0], call.argument("weight")
    if weight is not None and weight.dtype is not source.dtype:
        raise RuntimeError(f"expected scalar type {_short(source)} but found {_short(weight)}")


def _targets(call: Call) -> None:
    target = call.argument("target")
    if target.dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {_short(target)}")


def _index_add(call: Call) -> None:
    target, source = call.args[0], call.argument("source")
    if target.dtype is not source.dtype:
        raise RuntimeError(
            f"index_add_(): self ({_short(target)}) and source ({_short(source)}) must have the "
            "same scalar type"
        )


def _convolution(call: Call) -> None:
    source, weight = call.args[:2]
    if source.dtype is not weight.dtype:
        raise RuntimeError(
            f"Input type ({source.type()}) and weight type ({weight.type()}) should be the same"
        )


def indices(tensor: torch.Tensor, found: Any) -> None:
    """What `x[...]` refuses as an index.

    Raises:
        IndexError: An index has a type of its own, or a mask another shape than what it masks.
    """
    at = 0
    for index in found:
        if index is None:
            at += 1
            continue
        if index.dtype not in (torch.int64, torch.int32, torch.bool, torch.uint8):
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        if index.dtype not in (torch.bool, torch.uint8):
            at += 1
            continue
        for axis, size in enumerate(index.size()):
            if at + axis >= tensor.dim() or size != tensor.size(at + axis):
                raise IndexError(
                    f"The shape of the mask {list(index.size())} at index {axis} does not match "
                    f"the shape of the indexed tensor {list(tensor.size())} at index {at + axis}"
                )
        at += index.dim()


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Attention takes one type.

    Raises:
        RuntimeError: The types differ.
    """
    if not query.dtype is key.dtype is value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{_in_cpp(query)} key.dtype: {_in_cpp(key)} and value.dtype: {_in_cpp(value)} instead."
        )


def recurrent(source: torch.Tensor, hidden: torch.Tensor, params: Sequence[torch.Tensor]) -> None:
    """A recurrent layer takes everything from one device.

    Raises:
        RuntimeError: Its input or its hidden state is elsewhere than its weights.
    """
    home = params[0].device
    for name, tensor in (("input", source), ("hidden", hidden)):
        if tensor.device != home:
            other = "parameter" if name == "input" else "input"
            raise RuntimeError(
                f"Input and {'parameter' if name == 'input' else name} tensors are not at the same "
                f"device, found {name} tensor at {tensor.device} and {other} tensor at {home}"
            )


_RULES: dict[str, Callable[[Call], None]] = {
    "mm": _product,
    "addmm": _product_with_bias,
    "_addmm_activation": _product_with_bias,
    "bmm": _products,
    "mv": _with_vector,
    "addmv": _with_vector,
    "convolution": _convolution,
    "native_layer_norm": _layer_norm,
    "nll_loss_forward": _targets,
    "nll_loss2d_forward": _targets,
    "index_add": _index_add,
    "index_add_": _index_add,
}
REFUSALS: dict[Any, Callable[[Call], None]] = {
    operator: rule for name, rule in _RULES.items() if (operator := operator_of(name)) is not None
}
"""By operator, what torch 2.13's CUDA kernels check (its CUDA build was asked, without a card)."""


def said_by_cpu(call: Call) -> RuntimeError | None:
    """What the kernel says of shapes that do not fit; None where the CPU's finds nothing wrong.

    Kernels of all devices share these checks; shape rules in Python have other words.
    """
    if sum(tensor.numel() for tensor in call.tensors) > _ASKED_MOST:
        return None

    def like(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros(tensor.size(), dtype=tensor.dtype, device=CPU)

    with _C._DisableTorchDispatch():
        args, kwargs = call.map(like)
        kwargs = {n: CPU if isinstance(v, torch.device) else v for n, v in kwargs.items()}
        try:
            call.func(*args, **kwargs)
        except RuntimeError as err:
            said = type(err)(*err.args)
            return None if isinstance(err, NotImplementedError) else said
        except (IndexError, TypeError, ValueError):
            return None
    return None
