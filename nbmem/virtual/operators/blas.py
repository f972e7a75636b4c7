"""Matrix products: the workspace of cuBLAS and of cuBLASLt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.operators.operator import BLAS, BLASLT, Kernel, out, temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from nbmem.virtual.operators.operator import Launch, Step


def product(launch: Launch) -> Iterator[Step]:
    """The result first; the handle's workspace when the product is launched."""
    if launch.outs:
        yield out()
    yield from _copied(launch.call.args[:2])
    yield BLAS


def product_with_bias(launch: Launch) -> Iterator[Step]:
    """A vector as bias goes through cuBLASLt's epilogue."""
    if launch.outs:
        yield out()
    yield from _copied(launch.call.args[1:3])
    bias = launch["self"]
    yield BLASLT if bias.dim() == 1 else BLAS


def _copied(operands: tuple[torch.Tensor, ...]) -> Iterator[Step]:
    """Matrices that cuBLAS cannot step through are made contiguous first: expanded ones, mostly.

    aten/src/ATen/native/cuda/Blas.cpp: prepare_matrix_for_cublas, prepare_batch_matrix_for_cublas
    """
    for number, matrix in enumerate(operands):
        if matrix.dim() > 1 and not _has_leading_dimension(matrix):
            yield temporary(f"operand {number}", matrix.numel() * matrix.element_size())


def _has_leading_dimension(matrix: torch.Tensor) -> bool:
    (rows, columns), (down, right) = matrix.size()[-2:], matrix.stride()[-2:]
    return (
        (right == 1 and down >= max(1, columns))
        or (down == 1 and right >= max(1, rows))
        or (matrix.is_contiguous() and (matrix.dim() == 2 or bool(down and right)))
    )


KERNELS = (
    Kernel(
        ops=("mm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "mm.out", "bmm.out"),
        rule=product,
        source="aten/src/ATen/cuda/CublasHandlePool.cpp: getCurrentCUDABlasHandle",
        shown_by="gpt2_b4s512_adamw",
    ),
    Kernel(
        ops=("addmm", "_addmm_activation"),
        rule=product_with_bias,
        source="aten/src/ATen/native/cuda/Blas.cpp: addmm_out_cuda_impl; CUDABlas.cpp: CUBLASLT",
        shown_by="gpt2_b4s512_adamw",
    ),
)
