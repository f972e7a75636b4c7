"""Matrix products: the workspace of cuBLAS and of cuBLASLt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.kernels.plan import BLAS, BLASLT, Kernel, out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.kernels.plan import Launch, Step


def product(launch: Launch) -> Iterator[Step]:
    """The result first; the handle's workspace when the product is launched."""
    if launch.outs:
        yield out()
    yield BLAS


def product_with_bias(launch: Launch) -> Iterator[Step]:
    """A vector as bias goes through cuBLASLt's epilogue."""
    if launch.outs:
        yield out()
    bias = launch["self"]
    yield BLASLT if bias.dim() == 1 else BLAS


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
