"""The kernel that CUDA chooses for a norm."""

from __future__ import annotations

from typing import Any

import torch

from nbmem.virtual.tensors.operator_call import facts_of, operator_of

aten = torch.ops.aten


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
    """Run cuDNN's kernel where its conditions hold, else the native one."""
    if not tensor.numel():
        return _empty_batch_norm(tensor, weight, bias)
    running = running_mean, running_var
    if (
        cudnn_enabled
        and bias is not None
        and uses_cudnn(tensor, weight, running, training=training)
    ):
        source = tensor.contiguous(memory_format=_suggested(tensor))
        return aten.cudnn_batch_norm.default(
            source, weight, bias, running_mean, running_var, training, momentum, eps
        )[0]
    return aten.native_batch_norm.default(
        tensor, weight, bias, running_mean, running_var, training, momentum, eps
    )[0]


def uses_cudnn(
    tensor: torch.Tensor, weight: torch.Tensor | None, running: tuple[Any, Any], *, training: bool
) -> bool:
    """Return True if a batch norm with a bias runs in cuDNN.

    https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/Normalization.cpp
    (_select_batch_norm_backend)
    """
    given = sum(one is not None for one in running)
    return (
        torch.backends.cudnn.enabled
        and weight is not None
        and (given == len(running) or (not given and training))
        and torch.bfloat16 not in (tensor.dtype, weight.dtype)
        and (tensor.dtype is not torch.float16 or weight.dtype is torch.float32)
        and tensor.dim() > 2
        and tensor.size(0) <= (880801 if training else 65535)
        and tensor.numel() < 2**31 - 1
    )


def _empty_batch_norm(
    tensor: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """Run batch norm of an empty tensor as C++ does.

    Nothing is normalized, but gradients pass through it (_batch_norm_impl_index).
    """
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
    channels = tensor.size(1) if tensor.dim() > 1 else 0
    statistics = [torch.empty(channels, dtype=wide, device=tensor.device) for _ in range(2)]
    made = tensor.clone()
    if weight is not None:
        made = made * weight[0]
    if bias is not None:
        made = made + bias[0]
    del statistics
    return made


def _suggested(tensor: torch.Tensor) -> torch.memory_format:
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


class _RMSNorm(torch.autograd.Function):
    """CUDA's RMS norm kernel with its gradient, for builds without CUDA.

    Such a build has only the composite operator.
    """

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
        ctx.set_materialize_grads(False)  # No zeros for the factors, which have no gradient.

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
    """Run one kernel where its conditions hold, else the composite form.

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


def is_composite_here() -> bool:
    """Return True if only this build lacks the CUDA kernel of RMS norm.

    The release must have the kernel and its shape rule.

    Known limit: torch 2.9 has the kernel, but no shape rule for it.
    """
    kernel = operator_of("_fused_rms_norm")
    if kernel is None or facts_of(kernel).composite:
        return False
    return not kernel.has_kernel_for_dispatch_key(torch._C.DispatchKey.CUDA)
