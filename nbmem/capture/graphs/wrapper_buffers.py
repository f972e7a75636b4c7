"""A compiled graph as its text has it: what it is given, what it takes, what it returns."""

from __future__ import annotations

import ast
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbmem.core.session.buffer_annotations import ToldBuffer

_ITEM = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4,
    "uint32": 4, "uint64": 8, "bfloat16": 2, "float16": 2, "int16": 2, "uint16": 2,
}  # fmt: skip
"""Bytes of an element; one for any other type."""


class Buffer(NamedTuple):
    """A storage that a graph takes.

    Attributes:
        name: Inductor's name of what it is first.
        shape: Its shape, as code: numbers and the graph's symbols; empty if the text has none.
        dtype: Its type; empty if the text has none.
        operators: ATen's operators that make it, `native_dropout_add`; empty if nobody says.
        reads: What it is made from: the graph's arguments and other buffers, in order.
        sources: What the program's graph calls that, in its own words: `h_1`.
        told: What nbmem's own lines say of it; None without one.
    """

    name: str
    shape: tuple[str, ...]
    dtype: str
    operators: str
    reads: tuple[str, ...]
    sources: tuple[str, ...] = ()
    told: ToldBuffer | None = None

    def form(self, symbols: Mapping[str, int]) -> tuple[str, int] | None:
        """A shape and type in words, and the bytes; None where a symbol is not known."""
        shape = [evaluated(extent, symbols) for extent in self.shape]
        if not self.dtype or any(extent is None for extent in shape):
            return None
        known = tuple(extent for extent in shape if extent is not None)
        return f"{known} {self.dtype}", prod(known) * _ITEM.get(self.dtype, 1)


class Wrapper(NamedTuple):
    """A compiled graph.

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
    """An extent as a number; None where it has a symbol that is not known, or is none."""
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
