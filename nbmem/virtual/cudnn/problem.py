"""One convolution as cuDNN is asked about it."""

from __future__ import annotations

from dataclasses import dataclass

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
class Answer:
    """The kernel that cuDNN would take first.

    Attributes:
        nbytes: Bytes of its workspace.
        clustered: Whether it runs in clusters of blocks, as Hopper's own kernels do: what those
            take for partial sums depends on the real card, so only the copies are in `nbytes`.
    """

    nbytes: int
    clustered: bool
