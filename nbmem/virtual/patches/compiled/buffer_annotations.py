"""Comments about buffers behind a planned wrapper's code.

They name each buffer's operator, module and line. The graph's nodes have all three, and Inductor
leaves them out of its text. Readers of the code parse them (core/session/buffer_annotations.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch._inductor.graph import GraphLowering
from torch._inductor.utils import ValueWithLineMap

from nbmem.core.session.buffer_annotations import BufferAnnotation
from nbmem.virtual.patches.patcher import Patch

_LINE = re.compile(r'File "([^"]*)", line (\d+)')


def buffer_comments_patch() -> Patch:
    """Return a patch of code generation that adds a line for each buffer."""
    original_codegen: Any = GraphLowering.codegen

    def codegen(self: Any) -> Any:
        wrapper, *more = original_codegen(self)
        lines = "".join(f"\n{line}" for line in _lines(self.name_to_buffer))
        return ValueWithLineMap(wrapper.value + lines, wrapper.line_map), *more

    return Patch(GraphLowering, "codegen", codegen)


def _lines(buffers: dict[str, Any]) -> Iterator[str]:
    for name, buffer in buffers.items():
        # An object for a buffer that a kernel has written to has no operator of its own.
        node = _node(buffer) if hasattr(buffer, "get_origins") else None
        if node is not None:
            told = _operator(node), _direction(node), _module(node), *_line(node)
            yield BufferAnnotation(name, *_form(buffer), *told).to_comment()


def _node(buffer: Any) -> Any:
    """Return the node that a buffer is the value of.

    Else the latest of the nodes that it is made of; None without any.
    """
    node = buffer.get_origin_node()
    if node is None:
        origins = [one for one in buffer.get_origins() if one.op == "call_function"]
        node = max(origins, default=None)
    return node


def _form(buffer: Any) -> tuple[str, str]:
    """Return a buffer's shape and type as text.

    Both are empty if it has several buffers.
    """
    layout = buffer.layout
    if not hasattr(layout, "size") or not hasattr(layout, "dtype"):
        return "", ""
    extents = " ".join(str(extent).replace(" ", "") for extent in layout.size)
    return extents, str(layout.dtype).removeprefix("torch.")


def _operator(node: Any) -> str:
    operator = node.meta.get("original_aten")
    name = getattr(operator, "_opname", None) or getattr(operator, "_name", None)
    return str(name or getattr(node.target, "_opname", "") or "")


def _direction(node: Any) -> str:
    """Return `forward` or `backward`, as the partitioner tagged a node.

    Empty where there is only one.
    """
    return str(node.meta.get("partitioner_tag") or "").removeprefix("is_")


def _module(node: Any) -> str:
    meta = node.meta
    around = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    path = next(reversed(around.values()), ("",))[0]
    return path if isinstance(path, str) else ""


def _line(node: Any) -> tuple[str, str]:
    """Return the file and line of the program that a node comes from.

    It is the innermost line; both are empty if it is not known.
    """
    found = _LINE.findall(node.meta.get("stack_trace") or "")
    return found[-1] if found else ("", "")
