"""Find lines of a program: of an event, or those that add to a variable."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from nbmem.core.session.source_files import TOP_LEVEL, is_library, is_ours, is_users, with_slashes

if TYPE_CHECKING:
    from nbmem.core.session.events import Frame, Stack

KERNEL_CELL = re.compile(r"[\\/](?:ipykernel_\d+[\\/]|ipython-input-)\d+\.py$")
"""A cell of another kernel, or of an IPython that does not report its number."""
NUMBERED_CELL = re.compile(r"(?:^<|[\\/])ipython-input-(\d+)-")
"""File names of a terminal's cell, of Colab's, and of a kernel's (from `probes.cells`)."""
ADDS = frozenset(("append", "appendleft", "extend", "add", "insert", "update", "setdefault"))
"""Methods by which lists, deques, sets and dictionaries get items."""
_MAGIC = re.compile(r"\s*[%!]")


def users_line(stack: Stack) -> str | None:
    """Return the innermost frame outside libraries: `train.py:12 in step`.

    If there is none (the engine's thread has no Python frames of the user's), the innermost frame
    of a library; None for an empty stack.
    """
    others = [frame for frame in stack if not is_ours(frame.file)]
    for frame in others:
        if not is_library(frame.file):
            return _text(frame)
    return _text(others[0]) if others else None


def users_stack(stack: Stack) -> tuple[str, ...]:
    """Return the user's own lines of a stack, innermost first.

    Frames of libraries are left out.
    """
    return tuple(_text(frame) for frame in stack if is_users(frame))


def name_of(file: str) -> str:
    """Return a recorded file's display name: `train.py`, `In [7]`.

    A cell without a number is `the cell`.
    """
    if KERNEL_CELL.search(file):
        return "the cell"
    match = NUMBERED_CELL.search(file)
    return f"In [{match[1]}]" if match else with_slashes(file).rpartition("/")[2]


def frame_line(frame: Frame) -> str:
    """Format a frame's place without its function: `train.py:12`.

    For a cell: `In [7], line 3`.
    """
    if KERNEL_CELL.search(frame.file):  # a file that exists only in the kernel's memory
        return f"line {frame.line} of the cell"
    name = name_of(frame.file)
    return (
        f"{name}, line {frame.line}" if NUMBERED_CELL.search(frame.file) else f"{name}:{frame.line}"
    )


def _text(frame: Frame) -> str:
    where = frame_line(frame)
    return where if frame.function.startswith(TOP_LEVEL) else f"{where} in {frame.function}"


def adding_lines(code: Sequence[str], places: Collection[str]) -> list[int]:
    """Return the numbers of the lines that add to one of some places.

    Args:
        code: The lines of a cell or a script.
        places: Variables as code: `preds`, `history['out']`.

    Returns:
        Line numbers from 1, ascending; empty if the code cannot be parsed.
    """
    plain = [_without_magic(line) for line in code]
    try:
        tree = ast.parse("\n".join(plain))
        wanted = {ast.unparse(ast.parse(place, mode="eval")) for place in places}
    except (SyntaxError, ValueError, RecursionError):
        return []
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.expr, ast.stmt)))
    return sorted({node.lineno for node in nodes if wanted & set(_added_to(node))})


def _without_magic(line: str) -> str:
    """Return a statement in place of a magic, which Python cannot parse."""
    found = _MAGIC.match(line)
    return f"{line[: found.end() - 1]}pass" if found else line


def _added_to(node: ast.expr | ast.stmt) -> Iterator[str]:
    """Yield the places that a node adds to, as code."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ADDS:
            yield ast.unparse(node.func.value)
    elif isinstance(node, ast.AugAssign):
        yield ast.unparse(node.target)
        if isinstance(node.target, ast.Subscript):
            yield ast.unparse(node.target.value)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield ast.unparse(target.value)
            elif _names(target) & _names(node.value):  # total = total + loss
                yield ast.unparse(target)


def _names(node: ast.AST) -> set[str]:
    """Return the variables and attributes in an expression, as code."""
    parts = (ast.Name, ast.Attribute)
    return {ast.unparse(one) for one in ast.walk(node) if isinstance(one, parts)}
