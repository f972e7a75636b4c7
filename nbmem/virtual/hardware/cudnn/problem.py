"""A convolution problem and cuDNN's answer to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

FORWARD, FOR_INPUT, FOR_WEIGHT = "forward", "input", "weight"


@dataclass(frozen=True, slots=True)
class Problem:
    """A convolution; sizes and strides in elements.

    Attributes:
        kind: "forward", or the gradient "input" or "weight".
        dtype: "float32", "float64", "float16" or "bfloat16".
        source: Size and strides of the input.
        weight: Size and strides of the weights.
        result: Size and strides of the output.
        padding: Padding of each spatial dimension.
        stride: Stride in each spatial dimension.
        dilation: Dilation in each spatial dimension.
        tf32: Whether float32 may be rounded for tensor cores.
        deterministic: Whether only deterministic kernels may run.
    """

    kind: str
    dtype: str
    source: tuple[tuple[int, ...], tuple[int, ...]]
    weight: tuple[tuple[int, ...], tuple[int, ...]]
    result: tuple[tuple[int, ...], tuple[int, ...]]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    tf32: bool
    deterministic: bool


@dataclass(frozen=True, slots=True)
class Tiling:
    """A tiling of the result among blocks, by one of Hopper's own kernels.

    Attributes:
        rows: Rows of a block's tile.
        columns: Columns of a block's tile.
        cluster: Tiles in rows and columns whose blocks start together.
        splits: Whether it may divide sums, too, and store parts of them in its workspace.
    """

    rows: int = 128
    columns: int = 128
    cluster: tuple[int, int] = (1, 1)
    splits: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """A kernel that cuDNN lists for a convolution.

    Attributes:
        nbytes: Bytes of its workspace.
        tiling: The tiling of a kernel for Hopper, whose partial sums depend on the real card; then
            only the copies are in `nbytes`. None for another kernel.
    """

    nbytes: int
    tiling: Tiling | None = None

    @classmethod
    def read(cls, written: dict[str, Any]) -> Answer:
        """Build an answer from the worker's JSON object."""
        tiling = written["tiling"]
        if tiling is not None:
            tiling = Tiling(**{**tiling, "cluster": tuple(tiling["cluster"])})
        return cls(written["nbytes"], tiling)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels that can run one convolution, by their workspaces.

    Attributes:
        problem: The convolution.
        nbytes: Workspace bytes of the kernel that cuDNN lists first.
        doubtful: Whether cuDNN was not queried, and may take a kernel with a far larger workspace.
        every: Workspace bytes of all kernels in cuDNN's order; empty without a reply. The call
            takes a while.
    """

    problem: Problem
    nbytes: int
    doubtful: bool
    every: Callable[[], tuple[int, ...]] = field(compare=False)
