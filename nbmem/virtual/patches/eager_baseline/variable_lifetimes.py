"""Lifetimes of values that a program's variables keep.

A captured graph frees a value after its last use. A function holds a value in a variable until the
variable gets another value, or the function returns. Dynamo records the lines that each node comes
from, function by function; the source shows whether such a line assigns a variable.

Known limits: a function that is called from one line several times counts as one call. What a
function's parameters hold, and `del`, are not considered.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import Graph, Node

    Frame = tuple[str, int, str]

_FRAME = re.compile(r'File "([^"]*)", line (\d+), in (\S+)')


def kept_until(graph: Graph) -> dict[Node, Node]:
    """Map each value that a variable keeps to the last node it lives to.

    The value is not freed before that node has run.
    """
    nodes = [node for node in graph.nodes if node.op.startswith("call_")]
    frames = _frames(nodes)
    names = _Names()
    held: dict[Node, int] = {}
    for depth in range(max(map(len, frames), default=0)):
        for begin, end in _runs(frames, depth):
            given = names.of(frames[begin][depth])
            if given:
                last = _last(frames, names, depth, end, given)
                for node in _results(nodes[begin:end]):
                    held[node] = max(last, held.get(node, 0))
    return {node: nodes[last] for node, last in held.items()}


def _frames(nodes: list[Node]) -> list[tuple[Frame, ...]]:
    """Return the frames of each node, the outermost first.

    A node without frames has those of the node before.
    """
    found: list[tuple[Frame, ...]] = []
    for node in nodes:
        told = _FRAME.findall(node.meta.get("stack_trace") or "")
        known = tuple((file, int(line), name) for file, line, name in told)
        found.append(known or (found[-1] if found else ()))
    return found


def _runs(frames: list[tuple[Frame, ...]], depth: int) -> Iterator[tuple[int, int]]:
    """Yield where nodes in a row come from one line of one frame.

    Each is the index of the first node, and the index behind the last one.
    """
    begin = 0
    for at in range(1, len(frames) + 1):
        if at == len(frames) or frames[at][: depth + 1] != frames[begin][: depth + 1]:
            if len(frames[begin]) > depth:
                yield begin, at
            begin = at


def _last(
    frames: list[tuple[Frame, ...]], names: _Names, depth: int, end: int, given: frozenset[str]
) -> int:
    """Return the last node before a name is rebound or its frame ends."""
    own = frames[end - 1]
    for at in range(end, len(frames)):
        here = frames[at]
        if len(here) <= depth or (here[:depth], here[depth][2]) != (own[:depth], own[depth][2]):
            return at - 1
        if names.of(here[depth]) & given:
            while at + 1 < len(frames) and frames[at + 1][: depth + 1] == here[: depth + 1]:
                at += 1  # noqa: PLW2901 - the old value is freed after the new one is made
            return at
    return len(frames) - 1


def _results(nodes: list[Node]) -> Iterator[Node]:
    """Yield a line's last value, and its values that are used behind it."""
    inside = set(nodes)
    for node in nodes:
        if node is nodes[-1] or not inside.issuperset(node.users):
            yield node


class _Names:
    """Names that source lines assign, file by file."""

    def __init__(self) -> None:
        self._files: dict[str, dict[int, frozenset[str]]] = {}

    def of(self, frame: Frame) -> frozenset[str]:
        """Return the names that a line assigns."""
        file, line, _ = frame
        if file not in self._files:
            self._files[file] = _names_of("".join(linecache.getlines(file)))
        return self._files[file].get(line, frozenset())


def _names_of(source: str) -> dict[int, frozenset[str]]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, frozenset[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets: list[Any] = getattr(node, "targets", None) or [getattr(node, "target", None)]
            parts = (part for target in targets for part in getattr(target, "elts", [target]))
            names = frozenset(part.id for part in parts if isinstance(part, ast.Name))
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found[line] = names
    return found
