"""Annotations of compiled buffers, written as comments in Inductor's code.

If nbmem plans a graph itself, it appends these lines to the code (virtual/patches/compiled).
capture/graphs/inductor_wrapper.py reads them with that code.
"""

from __future__ import annotations

from typing import NamedTuple

_MARK = "# nbmem: "


class BufferAnnotation(NamedTuple):
    """The graph node of a compiled buffer; unknown fields are empty.

    Attributes:
        buffer: Inductor's name of the buffer.
        shape: Its extents, as code, with spaces between.
        dtype: Its dtype.
        operator: ATen's operator.
        direction: Whether it belongs to the `forward` or the `backward`, wherever it is computed.
        module: The module, as Dynamo writes it: `L['self'].blocks.0`.
        file: The line's file.
        line: Its number.
    """

    buffer: str
    shape: str
    dtype: str
    operator: str
    direction: str
    module: str
    file: str
    line: str

    def to_comment(self) -> str:
        """Format the annotation as a comment line."""
        return _MARK + "\t".join(" ".join(part.split()) for part in self)


def parse_annotation(line: str) -> BufferAnnotation | None:
    """Parse an annotation from a line of code; None for any other line."""
    parts = line.removeprefix(_MARK).split("\t")
    return (
        BufferAnnotation(*parts)
        if line.startswith(_MARK) and len(parts) == len(BufferAnnotation._fields)
        else None
    )
