"""One convolution as cuDNN is asked about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

FORWARD, FOR_INPUT, FOR_WEIGHT = "forward", "input", "weight"


@dataclass(frozen=True, slots=True)
class Problem:
    """A convolution; sizes and strides in elements.

    Attributes:
        kind: "forward", or the gradient "input" or "weight".
        dtype: "float32", "float64", "float16" or "bfloat16".
        source: Size and strides of the input.
        weight: The same of the weights.
        result: The same of the output.
        padding: For each spatial dimension.
        stride: The same.
        dilation: The same.
        tf32: Whether float32 may be rounded for tensor cores.
        deterministic: Whether kernels must be.
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
    """How one of Hopper's own kernels divides its result among blocks.

    Attributes:
        rows: Of a block's tile.
        columns: The same.
        cluster: Tiles in rows and columns whose blocks start together.
        splits: Whether it may divide sums, too, and keep parts of them in its workspace.
    """

    rows: int = 128
    columns: int = 128
    cluster: tuple[int, int] = (1, 1)
    splits: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """The kernel that cuDNN would take first.

    Attributes:
        nbytes: Bytes of its workspace.
        tiling: Of a kernel of Hopper's own, whose partial sums depend on the real card, so that
            only the copies are in `nbytes`; None for another.
    """

    nbytes: int
    tiling: Tiling | None = None

    @classmethod
    def read(cls, written: dict[str, Any]) -> Answer:
        """What the worker wrote."""
        tiling = written["tiling"]
        if tiling is not None:
            tiling = Tiling(**{**tiling, "cluster": tuple(tiling["cluster"])})
        return cls(written["nbytes"], tiling)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels that can do one convolution, by their workspaces.

    Attributes:
        problem: The convolution.
        nbytes: Bytes of the workspace of the kernel that cuDNN lists first.
        doubtful: Whether nobody asked cuDNN, and it may take a kernel of a far larger one.
        every: Bytes of all of them, in cuDNN's order; none where nobody can say. It takes a while.
    """

    problem: Problem
    nbytes: int
    doubtful: bool
    every: Callable[[], tuple[int, ...]] = field(compare=False)
