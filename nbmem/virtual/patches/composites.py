"""Choices that torch makes in C++ by asking whether a tensor is on CUDA, made for virtual tensors.

To C++ a virtual tensor lives on `lazy:0`, so these composite operators would take another path.
Their kernels are registered for CUDA's autograd key, which virtual tensors have, and are consulted
by the dispatch mode where autograd is out of the way (inference_mode).
"""

from __future__ import annotations

from typing import Any

import torch

from nbmem.virtual.operators.attention.choice import scaled_dot_product_attention
from nbmem.virtual.operators.recurrent.layers import MODES, layer
from nbmem.virtual.patches.autocast import implement
from nbmem.virtual.tensors.calls import facts_of, operator_of

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)


def softmax(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The kernel reads half types and writes float32 in one go."""
    return _softmax(aten._softmax.default, tensor, dim, dtype)


def log_softmax(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The same for its logarithm."""
    return _softmax(aten._log_softmax.default, tensor, dim, dtype)


def _softmax(operator: Any, tensor: torch.Tensor, dim: int, dtype: torch.dtype | None) -> Any:
    if dtype is torch.float32 and tensor.dtype in _HALVES:
        return operator(tensor, dim, True)
    return operator(tensor if dtype is None else tensor.to(dtype), dim, False)


def linear(
    tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """With a bias one product with an epilogue where the input is flat, else an addition in place.

    https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/Linear.cpp
    """
    if bias is None:
        return torch.matmul(tensor, weight.t())
    if tensor.dim() == 2:
        return torch.addmm(bias, tensor, weight.t())
    if tensor.dim() > 1 and tensor.is_contiguous() and bias.dim() == 1:
        flat = tensor.reshape(-1, tensor.size(-1))
        return torch.addmm(bias, flat, weight.t()).view(*tensor.size()[:-1], weight.size(0))
    return torch.matmul(tensor, weight.t()).add_(bias)


def batch_norm(  # noqa: PLR0913 - the schema's
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,  # noqa: FBT001
    momentum: float,
    eps: float,
    cudnn_enabled: bool,  # noqa: FBT001
) -> torch.Tensor:
    """cuDNN's kernel where its conditions hold, else the native one.

    https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/Normalization.cpp
    (_select_batch_norm_backend)
    """
    rows = tensor.size(0) if tensor.dim() else 0
    both = running_mean is not None and running_var is not None
    neither = running_mean is None and running_var is None
    cudnn = (
        cudnn_enabled
        and tensor.numel() > 0
        and weight is not None
        and bias is not None
        and (both or (neither and training))
        and torch.bfloat16 not in (tensor.dtype, weight.dtype)
        and (tensor.dtype is not torch.float16 or weight.dtype is torch.float32)
        and tensor.dim() > 2
        and rows <= (880801 if training else 65535)
        and tensor.numel() < 2**31 - 1
    )
    if cudnn and torch.backends.cudnn.enabled:
        source = tensor.contiguous(memory_format=_suggested(tensor))
        return aten.cudnn_batch_norm.default(
            source, weight, bias, running_mean, running_var, training, momentum, eps
        )[0]
    return aten.native_batch_norm.default(
        tensor, weight, bias, running_mean, running_var, training, momentum, eps
    )[0]


def _suggested(tensor: torch.Tensor) -> torch.memory_format:
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


class _RMSNorm(torch.autograd.Function):
    """CUDA's kernel and its gradient; a build without CUDA has but the composite one."""

    @staticmethod
    def forward(
        tensor: torch.Tensor, shape: list[int], weight: torch.Tensor | None, eps: float | None
    ) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return aten._fused_rms_norm.default(tensor, shape, weight, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        tensor, ctx.shape, weight, _ = inputs
        ctx.save_for_backward(tensor, weight, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        tensor, weight, factors = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        found = aten._fused_rms_norm_backward.default(
            gradients[0], tensor, ctx.shape, factors, weight, wanted
        )
        return found[0], None, found[1], None


def rms_norm(
    tensor: torch.Tensor,
    shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """One kernel where its conditions hold, else the operators it consists of.

    https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/layer_norm.cpp
    (rms_norm_symint)
    """
    fused = (
        _suggested(tensor) is torch.contiguous_format
        and not tensor.is_complex()
        and (weight is None or weight.dtype is tensor.dtype)
        and not torch._C._are_functorch_transforms_active()  # They cannot derive _RMSNorm.
    )
    if fused:
        return _RMSNorm.apply(tensor, list(shape), weight, eps)[0]
    return aten.rms_norm.default.decompose(tensor, shape, weight, eps)


def _composite_rms_norm() -> Any:
    """The operator, where this release has a kernel on CUDA and its shapes, but not this build.

    Known limit: torch 2.9 has the kernel, but no shape rule for it.
    """
    kernel = operator_of("_fused_rms_norm")
    if kernel is None or facts_of(kernel).composite:
        return None
    here = kernel.has_kernel_for_dispatch_key(torch._C.DispatchKey.CUDA)
    return None if here else operator_of("rms_norm")


def ctc_loss(  # noqa: PLR0913 - the schema's
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,  # noqa: FBT001, FBT002
) -> torch.Tensor:
    """Lengths are read to the host, wherever they are."""
    lengths = input_lengths.tolist(), target_lengths.tolist()
    return aten.ctc_loss.IntList(log_probs, targets, *lengths, blank, reduction, zero_infinity)


CHOICES: dict[Any, Any] = {
    operator: choice
    for operator, choice in (
        (operator_of("scaled_dot_product_attention"), scaled_dot_product_attention),
        *(
            (operator_of(f"{mode}.{kind}"), layer(mode, packed=kind == "data"))
            for mode in MODES
            for kind in ("input", "data")
        ),
        (operator_of("linear"), linear),
        (operator_of("softmax.int"), softmax),
        (operator_of("log_softmax.int"), log_softmax),
        (operator_of("batch_norm"), batch_norm),
        (operator_of("ctc_loss.Tensor"), ctc_loss),
        (_composite_rms_norm(), rms_norm),
    )
    if operator is not None
}
"""Composite operators and what they are on CUDA."""


class Choices:
    """The registered choices."""

    def __init__(self) -> None:
        self._library: Any = None

    def register(self) -> None:
        """Put the kernels in place."""
        self._library = torch.library.Library("aten", "IMPL")
        for operator, choice in CHOICES.items():
            implement(self._library, operator, choice, "AutogradCUDA")

    def unregister(self) -> None:
        """Take them away."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
