"""Arguments, buffers and results of a compiled graph, from its code."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nbmem.core.session.buffer_annotations import BufferAnnotation

_ITEM = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4,
    "uint32": 4, "uint64": 8, "bfloat16": 2, "float16": 2, "int16": 2, "uint16": 2,
}  # fmt: skip
"""Bytes of an element; one for any other dtype."""


class Buffer(NamedTuple):
    """A buffer that a compiled graph allocates.

    Attributes:
        name: Inductor's name of its first value.
        shape: Its shape, as code: numbers and the graph's symbols; empty if the text has none.
        dtype: Its dtype; empty if the text has none.
        operators: ATen's operators that compute it, `native_dropout_add`; empty if unknown.
        reads: Its inputs: the graph's arguments and other buffers, in order.
        sources: Names of its value in the program's graph: `h_1`.
        annotation: nbmem's annotation of it in the code; None without one.
    """

    name: str
    shape: tuple[str, ...]
    dtype: str
    operators: str
    reads: tuple[str, ...]
    sources: tuple[str, ...] = ()
    annotation: BufferAnnotation | None = None

    def form(self, symbols: Mapping[str, int]) -> tuple[str, int] | None:
        """Return shape and dtype as text, and the bytes, or None.

        None if the dtype or a symbol of the shape is unknown.
        """
        shape = [evaluated(extent, symbols) for extent in self.shape]
        if not self.dtype or any(extent is None for extent in shape):
            return None
        known = tuple(extent for extent in shape if extent is not None)
        return f"{known} {self.dtype}", prod(known) * _ITEM.get(self.dtype, 1)


class CompiledGraph(NamedTuple):
    """A compiled graph, parsed from Inductor's generated wrapper code.

    Attributes:
        kind: forward, backward or inference.
        arguments: The names of its inputs, in order, without its symbols.
        buffers: The buffers that it allocates, in order.
        results: The storage of each result, or None for a result that is no tensor.
        last: The last value of each storage, if it differs from the first.
    """

    kind: str
    arguments: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    results: tuple[str | None, ...]
    last: Mapping[str, Buffer]


def evaluated(code: str, symbols: Mapping[str, int]) -> int | None:
    """Evaluate an extent; None if it cannot be evaluated.

    These are unknown symbols, and code that is not integer arithmetic.
    """
    try:
        return _value(ast.parse(code, mode="eval").body, symbols)
    except (SyntaxError, KeyError, ZeroDivisionError, TypeError):
        return None


def _value(node: ast.expr, symbols: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return symbols[node.id]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, symbols), _value(node.right, symbols)
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.FloorDiv):
            return left // right
    raise TypeError(ast.dump(node))
