"""The program's own operators, put back into a captured graph.

Dynamo replaces some of them by other operators. An optimizer's `_foreach_lerp_` becomes a
difference, a product and a sum, of which the difference is as large as all gradients. Only the
source line of a node names the operator that was called.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/polyfills/__init__.py
"""

from __future__ import annotations

import linecache
import re
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.fx import Graph, Node

_FRAME = re.compile(r'File "([^"]*)", line (\d+), in ')
_LERP = "_foreach_lerp_"
_WRITES = frozenset({"_foreach_addcmul_", "_foreach_add_"})
"""How such a lerp ends: in 2.13 and later, and before."""


def restore_operators(graph: Graph) -> None:
    """Replace what Dynamo wrote for `_foreach_lerp_` by that operator.

    The graph is changed in place.
    """
    sub: Node | None = None
    for node in list(graph.nodes):
        name = getattr(node.target, "__name__", "")
        if name == "_foreach_sub" and _LERP in _line(node):
            sub = node
        elif sub is not None and name in _WRITES and _line(node) == _line(sub):
            _as_lerp(graph, sub, node)
            sub = None


def _as_lerp(graph: Graph, sub: Node, writes: Node) -> None:
    end, own = sub.args
    lerp: Any = torch._foreach_lerp_
    with graph.inserting_before(writes):
        # By how much is a value, which nothing here depends on.
        made = graph.call_function(lerp, (own, end, 0.5))
    made.meta.update(writes.meta)
    node = writes
    while True:
        before = node.prev
        if not node.users and node is not made:
            graph.erase_node(node)
        if node is sub:
            return
        node = before


def _line(node: Node) -> str:
    """Return the text of the innermost line that a node comes from.

    Empty if it is not known.
    """
    found = _FRAME.findall(node.meta.get("stack_trace") or "")
    return linecache.getline(found[-1][0], int(found[-1][1])) if found else ""
