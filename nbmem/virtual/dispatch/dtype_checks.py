"""Checks for types that CUDA kernels refuse and shape rules accept.

The CPU's kernels are run, with two elements in each dimension. 10,777 calls of torch's own
operators, with every type, were compared on the oracle (torch 2.13, H100). CUDA ran what
the CPU refuses only for operators in `_CPU_ALONE`. Types that CUDA alone refuses are in
`_CUDA_ALONE`. Each kind of call is run once.
"""

from __future__ import annotations

import re
from functools import cache
from math import prod
from typing import Any

import torch

from nbmem.virtual.devices import CPU
from nbmem.virtual.operator_model.value_checks import as_cuda_text, aten_type_name, run_on_cpu
from nbmem.virtual.tensors.operator_call import OperatorCall, facts_of

_CPU_ALONE = frozenset({
    "masked_fill", "abs", "median", "nanmedian", "rrelu", "rrelu_with_noise", "trace", "histc",
    "nansum",
})  # fmt: skip
"""Operators of which the CPU refuses more than CUDA."""
_ASKED = frozenset({
    "_softmax", "_log_softmax", "std", "var", "std_mean", "var_mean", "sum", "mean", "prod", "max",
    "min", "amax", "amin", "aminmax", "argmax", "argmin", "sort", "cumsum", "cumprod", "norm",
    "linalg_vector_norm", "index_select", "index_copy", "index_add", "random", "uniform", "normal",
    "bernoulli", "exponential", "geometric", "cauchy", "log_normal", "multinomial", "bincount",
    "binary_cross_entropy", "mse_loss", "smooth_l1_loss", "huber_loss", "native_dropout", "gelu",
    "native_layer_norm", "pow", "float_power", "lerp", "complex", "bucketize", "searchsorted",
    "nll_loss_forward", "nll_loss2d_forward",
})  # fmt: skip
"""Beside those that go element by element."""
_HALVES = (torch.float16, torch.bfloat16)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_CUDA_ALONE: dict[str, tuple[str, tuple[torch.dtype, ...]]] = {
    "aten::max_pool2d_with_indices": ("max_pool2d_with_indices_out_cuda_frame", _INTEGERS),
    "aten::max_pool3d_with_indices": ("max_pool3d_with_indices_out_frame", _INTEGERS),
    "aten::avg_pool2d": ("avg_pool2d_out_cuda_frame", (torch.int64,)),
    "aten::avg_pool3d": ("avg_pool3d_out_cuda", (torch.int64,)),
    "aten::upsample_bilinear2d": ("upsample_bilinear2d_out_frame", _INTEGERS),
    "aten::upsample_bicubic2d": ("upsample_bicubic2d_out_frame", _INTEGERS),
    "aten::_linalg_svd": ("svd_cuda_gesvdjBatched", _HALVES),
    "aten::linalg_qr": ("geqrf_cuda", _HALVES),
    "aten::_linalg_det": ("lu_factor_cusolver", _HALVES),
    "aten::dot": ("dot", _INTEGERS),
    "aten::vdot": ("dot", _INTEGERS),
    "aten::angle": ("angle_cuda", _HALVES),
    "aten::igamma": ("igamma_cuda", _HALVES),
    "aten::igammac": ("igammac_cuda", _HALVES),
    "aten::histc": ("histc", (torch.bfloat16,)),
}
"""By operator: the kernel's name in torch's words, and the types that it does not take."""
_OF_TYPES = re.compile(
    r"not implemented for '(?!Half|BFloat16)\w+'|can't be cast to the desired output type|"
    r"with a bool tensor is not supported|only supports? (floating.point|boolean masks)|"
    r"not support bool|does not support complex dtypes|Found dtype \w+ but expected|"
    r"expected scalar type|to have the same dtype|Expected dtype int32 or int64|"
    r"Integers to negative integer powers|expects 'from' to be less|"
    r"(from|to - 1) is out of bounds for|expected probabilities tensor to have floating|"
    r"Expected both inputs to be Half|Expected object of scalar type|boundaries tensor must be|"
    r"expects to return a \[from, to\) range|"
    r"expects (p|lambda|sigma|std) (to be|>)|n cannot be greater than"
)
_OF_MIXED = re.compile("can't be cast|to have the same dtype")
_WRAPPED = frozenset({"aten::_softmax", "aten::_log_softmax", "aten::index_select"})
"""Operators whose shape rule takes any dimension."""
_MOST = 1 << 20
"""A product of sizes in the arguments from which on the CPU is not run: it would allocate it."""
_EACH, _FEW_DIMENSIONS = 2, 8
"""Elements in each dimension of the CPU's arguments, and the most dimensions. With one element the
CPU warns the user that there is no standard deviation. More dimensions make too many elements."""
_SMALL = 16
"""Numbers up to which an argument may be a dimension; of others the type is sufficient."""
_OF_ALL = frozenset({torch.ops.aten.max.default, torch.ops.aten.min.default})
_NOTHING = (
    "Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with "
    "the 'dim' argument."
)

_MOST_ERRORS = 10_000
_errors: dict[Any, Any] = {}
"""The result for each kind of call: an error's class and text, or None."""
_UNASKED = object()


def refuse_types(call: OperatorCall) -> None:
    """Raise the kernel's error, in torch's words, if it refuses the types.

    Raises:
        NotImplementedError, RuntimeError, IndexError: As the kernel would.
    """
    name = call.func._schema.name
    if call.func.namespace != "aten" or not call.tensors:
        return
    kernel, refused = _CUDA_ALONE.get(name, ("", ()))
    if refused and call.tensors[0].dtype in refused:
        raise NotImplementedError(
            f"\"{kernel}\" not implemented for '{aten_type_name(call.tensors[0])}'"
        )
    if name.startswith("aten::masked_fill"):
        _check_mask(call.argument("mask"))
    if call.func in _OF_ALL and not call.tensors[0].numel():
        raise RuntimeError(f"{name.removeprefix('aten::')}(): {_NOTHING}")
    if not _has_cpu_check(call.func):
        return
    key = (call.func, *map(_kind, call.args), *((n, _kind(v)) for n, v in call.kwargs.items()))
    if facts_of(call.func).random:  # the numbers are a range, or a chance
        key += tuple(v for v in (*call.args, *call.kwargs.values()) if isinstance(v, float))
    error = _errors.get(key, _UNASKED)
    if error is _UNASKED:
        if len(_errors) >= _MOST_ERRORS:
            _errors.clear()
        error = _errors[key] = _cpu_type_error(call)
    if error is not None:
        kind, message = error
        raise kind(message)


@cache
def _has_cpu_check(func: Any) -> bool:
    """Return True if the CPU's kernel checks its arguments.

    Other kernels may read behind small tensors.
    """
    name = func._schema.name.removeprefix("aten::").rstrip("_")
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, o) for o in packet.overloads()]
    element_wise = any(torch.Tag.pointwise in overload.tags for overload in overloads)
    return (element_wise or name in _ASKED) and name not in _CPU_ALONE


def _check_mask(mask: torch.Tensor) -> None:
    if mask.dtype not in (torch.bool, torch.uint8):
        kind = aten_type_name(mask)
        raise RuntimeError(f"masked_fill only supports boolean masks, but got dtype {kind}")


def _cpu_type_error(call: OperatorCall) -> tuple[type[Exception], str] | None:
    """Return the CPU kernel's type error; None without one."""
    if not _is_small((*call.args, *call.kwargs.values())):
        return None
    types = {tensor.dtype for tensor in call.tensors if tensor.dim()}
    mixed = len(types) > 1 and not types.isdisjoint(_HALVES)  # CUDA has kernels for those

    def like(tensor: torch.Tensor) -> torch.Tensor:
        each = _EACH if tensor.dim() <= _FEW_DIMENSIONS else 1
        return torch.zeros((each,) * tensor.dim(), dtype=tensor.dtype, device=CPU)

    try:
        run_on_cpu(call, like)
    except (NotImplementedError, RuntimeError, IndexError) as err:
        text = str(err).partition("\n")[0]
        of_dims = call.func._schema.name in _WRAPPED and "Dimension out of range" in text
        if of_dims or (_OF_TYPES.search(text) and (not mixed or _OF_MIXED.search(text))):
            return type(err), as_cuda_text(text)
    except (TypeError, ValueError, MemoryError):
        pass
    return None


def _kind(value: Any) -> Any:
    """Return the part of an argument that decides about an error."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim()
    if isinstance(value, (list, tuple)):
        return tuple(map(_kind, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return (int, value) if abs(value) <= _SMALL else int
    return (type(value), value) if isinstance(value, (bool, torch.dtype, str)) else type(value)


def _is_small(arguments: tuple[Any, ...]) -> bool:
    for value in arguments:
        sizes = value if isinstance(value, (list, tuple)) else [value]
        if prod(max(abs(size), 1) for size in sizes if isinstance(size, int)) > _MOST:
            return False
    return True
