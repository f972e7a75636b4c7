"""Loss operators: their results, and buffers for each element's loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operator_model.operator import (
    LONG,
    Operator,
    contiguous,
    drop,
    out,
    outs,
    outs_then_copies,
    temporary,
)
from nbmem.virtual.operator_model.value_checks import aten_type_name
from nbmem.virtual.operators.reduce import staging
from nbmem.virtual.tensors.shapes import Results, infer, like, several

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten


def ctc_loss(  # noqa: PLR0913 - the schema's
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,  # noqa: FBT001, FBT002
) -> torch.Tensor:
    """Run `ctc_loss` on lengths read to the host from any device."""
    lengths = input_lengths.tolist(), target_lengths.tolist()
    return aten.ctc_loss.IntList(log_probs, targets, *lengths, blank, reduction, zero_infinity)


def ctc(launch: Launch) -> Iterator[Step]:
    """Plan `_ctc_loss`: lengths and offsets, then log_alpha, then the losses."""
    yield from _lengths(launch)
    yield from (out(1), out(0))


def ctc_backward(launch: Launch) -> Iterator[Step]:
    """Plan the backward of `_ctc_loss`: lengths, path buffer, gradient.

    The path buffer is as large as log_alpha. It is freed after the gradient is allocated.
    """
    yield from _lengths(launch)
    paths = launch["log_alpha"]
    yield temporary("paths", paths.numel() * paths.element_size())
    yield out()
    yield drop("paths")


def _lengths(launch: Launch) -> Iterator[Step]:
    for name in ("input lengths", "target lengths", "target offsets"):
        yield temporary(name, launch["log_probs"].size(1) * LONG)


def _check_targets(call: OperatorCall) -> None:
    target = call.argument("target")
    if target.dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(
            f"expected target dtype to be Long or Byte, but got {aten_type_name(target)}"
        )
    source, weight = call.argument("self"), call.argument("weight")
    if weight is not None and weight.dtype is not source.dtype:
        raise RuntimeError(
            f"expected scalar type {aten_type_name(source)} but found {aten_type_name(weight)}"
        )


def shape(call: OperatorCall) -> Results:
    """Return a reduced loss in a storage that holds each element's loss.

    The operator writes all losses there and shrinks the tensor to one number.

    aten/src/ATen/native/Loss.cpp: TORCH_META_FUNC(mse_loss) (resize_), soft_margin_loss_out;
    aten/src/ATen/native/cuda/Loss.cu: binary_cross_entropy_out_cuda
    """
    spec = infer(call).fresh[0]
    source, target = call.args[:2]
    whole = torch.broadcast_shapes(source.size(), target.size()).numel()
    spec = replace(spec, nbytes=max(spec.nbytes, whole * spec.dtype.itemsize))
    return Results(spec, (spec,))


def reduced(launch: Launch) -> Iterator[Step]:
    """Plan a loss that reduces from a second buffer of all terms.

    The result's storage has the size of all terms, too.
    """
    yield out()
    if launch["reduction"]:
        yield temporary("terms", launch.outs[0].nbytes)
        yield from _reduction(launch)


def in_place(launch: Launch) -> Iterator[Step]:
    """Plan a loss whose terms are in the result's storage.

    They are reduced into a number of its own, which is copied to the result.
    """
    yield out()
    if launch["reduction"]:
        yield temporary("reduced", launch.outs[0].dtype.itemsize)
        yield from _reduction(launch)


def huber(launch: Launch) -> Iterator[Step]:
    """Plan `huber_loss`: a buffer of all terms, then the result.

    Without a reduction there is only the result.
    """
    if launch["reduction"]:
        yield temporary("terms", launch["self"].numel() * launch["self"].element_size())
    yield out()
    if launch["reduction"]:
        yield from _reduction(launch)


def _reduction(launch: Launch) -> Iterator[Step]:
    terms = torch.empty(
        torch.broadcast_shapes(launch["self"].size(), launch["target"].size()), device="meta"
    )
    item = staging.accumulator_bytes(launch.outs[0].dtype)
    yield from staging.staging_steps(terms, range(terms.dim()), item, launch.card)


def bce_with_logits(launch: Launch) -> Iterator[Step]:
    """Plan BCE with logits: log sigmoid, positive weights, then losses.

    Without a reduction the losses are the result.
    """
    tensor, weight = launch["self"], launch["pos_weight"]
    size = tensor.numel() * tensor.element_size()
    yield temporary("log sigmoid", size)
    if weight is not None:
        yield temporary("weight - 1", weight.numel() * weight.element_size())
        yield temporary("weight", size)
        yield drop("weight - 1")
        yield drop("weight")
    if not launch["reduction"]:
        yield out()
        return
    yield temporary("losses", size)
    dims = tuple(range(tensor.dim()))
    yield from staging.outs_and_staging(
        launch, tensor, dims, staging.accumulator_bytes(tensor.dtype)
    )


def shape_log_sigmoid(call: OperatorCall) -> Results:
    """Return result and buffer; the buffer is empty, as only the CPU fills it."""
    tensor = call.argument("self")
    return several((tensor.size(), tensor.dtype), ((0,), tensor.dtype))


def nll_of_pixels(launch: Launch) -> Iterator[Step]:
    """Plan `nll_loss2d_forward`: the results and contiguous copies.

    Without a reduction the total weight is allocated before the losses, and nothing is copied.
    """
    if not launch["reduction"]:
        yield from (out(1), out(0))
        return
    yield from outs(launch)
    yield from contiguous(launch["self"], launch["weight"], launch["target"])


def soft_margin_backward(launch: Launch) -> Iterator[Step]:
    """Plan exp(-target * input), then the result."""
    size = launch["self"].numel() * launch["self"].element_size()
    yield temporary("minus target", size)
    yield temporary("product", size)
    yield temporary("exponential", size)
    yield from (drop("product"), drop("minus target"))
    yield out()


def multi_margin(launch: Launch) -> Iterator[Step]:
    """Plan the results; a reduction needs one term per row besides."""
    yield from outs(launch)
    yield from _terms_of_rows(launch)


def multilabel_margin(launch: Launch) -> Iterator[Step]:
    """Plan the mask of targets, one term per row, then the loss.

    The terms are needed for a reduction of a batch only.
    """
    yield out(1)
    yield from _terms_of_rows(launch)
    yield out(0)


def _terms_of_rows(launch: Launch) -> Iterator[Step]:
    tensor = launch["self"]
    if launch["reduction"] and tensor.dim() == 2:
        yield temporary("terms", tensor.size(0) * tensor.element_size())


_NLL = "aten/src/ATen/native/cuda/Loss.cu: nll_loss_forward_out_cuda_template"
OPERATORS = (
    Operator(("ctc_loss.Tensor",), composite=ctc_loss),
    Operator(
        ("_ctc_loss",),
        memory=ctc,
        source="aten/src/ATen/native/cuda/LossCTC.cu: ctc_loss_gpu_template",
    ),
    Operator(
        ("_ctc_loss_backward",),
        shape=like("log_probs"),
        memory=ctc_backward,
        source="aten/src/ATen/native/cuda/LossCTC.cu: ctc_loss_backward_gpu_template",
    ),
    Operator(
        ("nll_loss_forward",),
        refuse=_check_targets,
        memory=outs_then_copies("self", "target", "weight"),
        source=_NLL,
    ),
    Operator(
        ("nll_loss_backward",),
        memory=outs_then_copies("target", "self", "grad_output", "weight"),
        source=_NLL.replace("forward", "backward"),
    ),
    Operator(
        ("nll_loss2d_forward",),
        refuse=_check_targets,
        memory=nll_of_pixels,
        source=_NLL.replace("Loss.cu: nll_loss", "NLLLoss2d.cu: nll_loss2d"),
    ),
    Operator(
        ("soft_margin_loss_backward",),
        memory=soft_margin_backward,
        source="aten/src/ATen/native/Loss.cpp: soft_margin_loss_backward_out",
    ),
    Operator(
        ("log_sigmoid_forward",),
        shape=shape_log_sigmoid,
        source="aten/src/ATen/native/cuda/Activation.cpp: log_sigmoid_forward_cuda",
    ),
    Operator(
        ("multi_margin_loss",),
        memory=multi_margin,
        source="aten/src/ATen/native/cuda/MultiMarginLoss.cu: multi_margin_loss_cuda_out",
    ),
    Operator(
        ("multilabel_margin_loss_forward",),
        memory=multilabel_margin,
        source="aten/src/ATen/native/cuda/MultiLabelMarginCriterion.cu: "
        "multilabel_margin_loss_forward_out_cuda_template",
    ),
    Operator(("multi_margin_loss_backward", "multilabel_margin_loss_backward"), shape=like("self")),
    Operator(
        ("binary_cross_entropy_with_logits",),
        memory=bce_with_logits,
        source="aten/src/ATen/native/Loss.cpp: binary_cross_entropy_with_logits",
        shown_by="dlrm_like_b2048_adagrad, forward",
    ),
    Operator(
        ("mse_loss", "smooth_l1_loss"),
        shape=shape,
        memory=reduced,
        source="aten/src/ATen/native/Loss.cpp: TORCH_IMPL_FUNC(mse_loss_out)",
        shown_by="none of the H100's runs; on the CPU, whose code it is, the storage shows it",
    ),
    Operator(
        ("binary_cross_entropy", "soft_margin_loss"),
        shape=shape,
        memory=in_place,
        source="aten/src/ATen/native/cuda/Loss.cu: binary_cross_entropy_out_cuda; Loss.cpp",
    ),
    Operator(
        ("huber_loss",),
        memory=huber,
        source="aten/src/ATen/native/Loss.cpp: huber_loss",
    ),
)
