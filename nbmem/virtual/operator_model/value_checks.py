"""Calls that CUDA kernels refuse and torch's shape rules accept.

Shape rules check shapes but, for most operators, no types. Without these checks a program
that mixes types would run here and fail on the real card. What a kernel checks is in its
family, as `refuse` of its record. It was read from torch 2.13's CUDA build without a card.
This module has the shared error texts and the CPU kernel's check of shapes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import _C

from nbmem.virtual.devices import CPU
from nbmem.virtual.hardware.forks import BAD_FORK
from nbmem.virtual.tensors.operator_call import OperatorCall, facts_of

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
_UNMEANT = "Could this error message be improved"
"""Part of a kernel's error about itself and not about its arguments."""
_INITIALIZATION = (
    "CUDA error: initialization error\n"
    "Search for `cudaErrorInitializationError' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
    "group__CUDART__TYPES.html for more information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
_ASKED_MOST = 1 << 24
"""Elements up to which the CPU's kernel is run for its error about shapes."""


def aten_type_name(tensor: torch.Tensor) -> str:
    """Return a tensor's type as ATen's messages name it."""
    return _SHORT.get(tensor.dtype, str(tensor.dtype))


def in_cpp(tensor: torch.Tensor) -> str:
    """Return a tensor's type as C++ names it."""
    return _IN_CPP.get(tensor.dtype, str(tensor.dtype))


def as_cuda_text(text: str) -> str:
    """Return a CPU kernel's error text as CUDA's kernel words it."""
    names = (('_cpu"', '_cuda"'), ("_out_cpu_", "_out_cuda_"), (" on CPU", " on CUDA"))
    for here, there in names:
        text = text.replace(here, there)
    return text


def run_on_cpu(call: OperatorCall, like: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Run a call on CPU tensors in place of its own.

    The program's random numbers stay as they are.
    """
    random = torch.get_rng_state() if facts_of(call.func).random else None
    try:
        with _C._DisableTorchDispatch():
            args, kwargs = call.map(like)
            kwargs = {n: CPU if isinstance(v, torch.device) else v for n, v in kwargs.items()}
            kwargs.pop("generator", None)
            call.func(*args, **kwargs)
    finally:
        if random is not None:
            torch.set_rng_state(random)


def cpu_shape_error(call: OperatorCall) -> Exception | None:
    """Return the error of the CPU's kernel for these shapes; None without one.

    None is also returned for calls that are too large to run on the CPU.

    Kernels of all devices share these checks; shape rules in Python have other words.
    """
    if sum(tensor.numel() for tensor in call.tensors) > _ASKED_MOST:
        return None

    def like(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros(tensor.size(), dtype=tensor.dtype, device=CPU)

    try:
        run_on_cpu(call, like)
    except (RuntimeError, IndexError) as err:
        if not isinstance(err, NotImplementedError) and _UNMEANT not in str(err):
            return type(err)(as_cuda_text(str(err)))
    except (TypeError, ValueError):
        pass
    return None


def refuse_in_fork(call: OperatorCall) -> None:
    """Raise torch's error for an operator on a card in a forked process.

    Raises:
        RuntimeError: A tensor is made or moved to the card, or a kernel would run.
    """
    device = call.argument("device")
    if device is not None and torch.device(device).type in {"cuda", "lazy"}:
        raise RuntimeError(BAD_FORK)
    if not facts_of(call.func).view:
        raise getattr(torch, "AcceleratorError", RuntimeError)(_INITIALIZATION)
