"""What a compiled graph's node knows of a buffer: a line of comment in the wrapper's text.

Where nbmem plans a graph itself it writes these lines behind the code (virtual/patches/compiled),
and whoever reads that code reads them with it (capture/graphs/inductor_wrapper.py).
"""

from __future__ import annotations

from typing import NamedTuple

_MARK = "# nbmem: "


class ToldBuffer(NamedTuple):
    """A buffer's node; what it does not know is empty.

    Attributes:
        buffer: Inductor's name of the buffer.
        shape: Its extents, as code, with spaces between.
        dtype: Its type.
        operator: ATen's operator.
        direction: Whether it is of the `forward` or of the `backward`, wherever it is computed.
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

    def written(self) -> str:
        """The line that says so."""
        return _MARK + "\t".join(" ".join(part.split()) for part in self)


def told_by(line: str) -> ToldBuffer | None:
    """What a line says; None for any other line."""
    parts = line.removeprefix(_MARK).split("\t")
    return (
        ToldBuffer(*parts)
        if line.startswith(_MARK) and len(parts) == len(ToldBuffer._fields)
        else None
    )
