"""The autograd node that the engine runs, for rules that depend on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch


class RunningNode(threading.local):
    """The autograd node that the engine runs, on one machine, in this thread.

    Its name is read only once a forward may have created a node whose name matters. The Python
    object of a node exists as long as the node. A graph with ten thousands of such objects in a
    row is freed by a recursion that ends the process (torch 2.13: THPCppFunction_dealloc,
    ~Node). A graph without Python objects is freed by a loop.

    Attributes:
        negated: Returns the tensor that the target's formula of a cross entropy made last, or None.
        before: The operator that was called before the present one.
    """

    def __init__(self, matter: set[bool]) -> None:
        self._matter = matter  # of all threads: one may run what another one made
        self.negated: Callable[[], Any] = lambda: None
        self.before: Any = None
        self._running: Any = None

    def note_call(self, func: Any) -> None:
        """Note an operator's call, and if a node's name will matter."""
        self.before, self._running = self._running, func
        if not self._matter and _creates_registered_node(func):
            self._matter.add(True)

    def name(self) -> str:
        """Return the running node's name; "" without one that matters."""
        node = torch._C._current_autograd_node() if self._matter else None
        return "" if node is None else str(node.name())


_stems: set[str] = set()


def register_node_names(nodes: Iterable[str]) -> tuple[str, ...]:
    """Register names of nodes, or their beginnings, that rules read."""
    found = tuple(nodes)
    _stems.update(name.partition("Backward")[0].lower() for name in found)
    return found


@cache
def _creates_registered_node(func: Any) -> bool:
    name = func._schema.name.partition("::")[2].replace("_", "")
    return name.startswith(tuple(_stems))
