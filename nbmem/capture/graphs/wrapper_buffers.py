"""Arguments, buffers and results of a compiled graph, from its code."""

from __future__ import annotations

import ast
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbmem.core.session.buffer_annotations import BufferAnnotation

_ITEM = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4,
    "uint32": 4, "uint64": 8, "bfloat16": 2, "float16": 2, "int16": 2, "uint16": 2,
}  # fmt: skip
"""Bytes of an element; one for any other type."""


class Buffer(NamedTuple):
    """A buffer that a compiled graph allocates.

    Attributes:
        name: Inductor's name of what it is first.
        shape: Its shape, as code: numbers and the graph's symbols; empty if the text has none.
        dtype: Its type; empty if the text has none.
        operators: ATen's operators that make it, `native_dropout_add`; empty if unknown.
        reads: What it is made from: the graph's arguments and other buffers, in order.
        sources: What the program's graph calls that, in its own words: `h_1`.
        told: What nbmem's annotation in the code says of it; None without one.
    """

    name: str
    shape: tuple[str, ...]
    dtype: str
    operators: str
    reads: tuple[str, ...]
    sources: tuple[str, ...] = ()
    told: BufferAnnotation | None = None

    def form(self, symbols: Mapping[str, int]) -> tuple[str, int] | None:
        """Return shape and dtype as text, and the bytes, or None.

        None where the dtype or a symbol of the shape is not known.
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
        arguments: The names of what it is given, in order, without its symbols.
        buffers: What it takes, in order.
        results: Which storage each result is, or None for what is no tensor.
        last: What each storage is at the end, where it is not what it was first.
    """

    kind: str
    arguments: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    results: tuple[str | None, ...]
    last: Mapping[str, Buffer]


def evaluated(code: str, symbols: Mapping[str, int]) -> int | None:
    """Evaluate an extent; None if it cannot be evaluated.

    That is so for an unknown symbol, and for code that is no integer arithmetic.
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
