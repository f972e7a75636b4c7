"""Shortcuts through Inductor's own arithmetic while it plans.

Each returns what torch's code would. A plan is half sympy: tens of thousands of sums and
comparisons, most of two numbers or of what was computed a moment ago. Nothing here changes a plan:
without the shortcuts it is the same, later.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/sizevars.py
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/dtype_propagation.py
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/loop_body.py
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._inductor import dependencies, sizevars
from torch._inductor.codegen.simd import SIMDKernel
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
from torch._inductor.loop_body import InterpreterShim
from torch._inductor.scheduler import Scheduler
from torch._inductor.virtualized import V
from torch._logging import _internal
from torch.fx.node import map_arg
from torch.utils._ordered_set import OrderedSet
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from nbmem.virtual.patches.patcher import Patch, patches_of

_sympy: Any = sizevars.sympy
_KEPT = 1 << 16
"""Expressions in the cache: a ResNet-50 has some thousand."""


def shortcut_patches() -> list[Patch]:
    """Return the patches of all shortcuts."""
    sizes: Any = sizevars.SizeVarAllocator
    scheduler: Any = Scheduler
    accesses: Any = getattr(dependencies, "_RecordLoadStoreInner", None)
    return [
        *patches_of(
            sizes,
            {
                "statically_known_equals": _equals(sizes.statically_known_equals),
                "simplify": _simplify(sizes.simplify),
                "_simplify_with_ranges": _with_ranges(sizes._simplify_with_ranges),
            },
            only_existing=True,
        ),
        *patches_of(sizevars, {"_join_dimensions_cached": _joins()}, only_existing=True),
        *patches_of(
            scheduler,
            {
                "get_graph_partition_symbol_inputs": _symbols(
                    scheduler.get_graph_partition_symbol_inputs
                )
            },
            only_existing=True,
        ),
        *patches_of(
            accesses, {"drop_unused_symbols": staticmethod(_drop_unused)}, only_existing=True
        ),
        Patch(SIMDKernel, "set_current_node", _unbounded(SIMDKernel.set_current_node)),
        Patch(InterpreterShim, "run", _run),
        Patch(DtypePropagationOpsHandler, "__init__", _once(DtypePropagationOpsHandler.__init__)),
        Patch(torch.fx.GraphModule, "print_readable", _unread(torch.fx.GraphModule.print_readable)),
    ]


def _is_number(value: Any) -> bool:
    return type(value) is int or isinstance(value, _sympy.Integer)


def _equals(original_equals: Callable[..., bool]) -> Callable[..., bool]:
    """Return a comparison that compares two numbers directly.

    torch's makes an expression of sympy of them first.
    """

    def equals(self: Any, left: Any, right: Any) -> bool:
        if _is_number(left) and _is_number(right):
            return int(left) == int(right)
        return original_equals(self, left, right)

    return equals


def _is_static(sizes: Any) -> bool:
    """Return whether no size of the graph is a symbol.

    Then the simplified form depends on the expression alone.
    """
    shapes = sizes.shape_env
    return not (sizes.replacements or shapes.var_to_range or shapes.replacements)


def _simplify(original_simplify: Callable[..., Any]) -> Callable[..., Any]:
    expanded = functools.lru_cache(_KEPT)(_sympy.expand)

    def simplify(self: Any, expr: Any) -> Any:
        return original_simplify(self, expr) if self.replacements else expanded(expr)

    return simplify


def _with_ranges(original_simplify: Callable[..., Any]) -> Callable[..., Any]:
    """Return a simplification with ranges that is cached for all graphs.

    torch caches it for one graph, and forward and backward make equal queries. Ranges matter to
    divisions alone, which most expressions do not have.
    """
    known: dict[Any, Any] = {}

    def simplify(self: Any, expr: Any, ranges: Any) -> Any:
        if not _is_static(self):
            return original_simplify(self, expr, ranges)
        key = (expr, *ranges.items())
        found = known.get(key)
        if found is None:
            if len(known) > _KEPT:
                known.clear()
            found = sizevars.join_dimensions(self.simplify(expr))
            if found.has(ModularIndexing, FloorDiv):
                found = original_simplify(self, expr, ranges)
            known[key] = found
        return found

    return simplify


def _joins() -> Any:
    """Return join_dimensions() with a larger cache.

    torch caches 256 results, fewer than a graph has.
    """
    cached: Any = getattr(sizevars, "_join_dimensions_cached", None)
    return functools.lru_cache(_KEPT)(getattr(cached, "__wrapped__", cached))


def _symbols(original_symbols: Callable[..., Any]) -> Callable[..., Any]:
    """Return a search for a part's size symbols that may end at once.

    A graph without symbols has none.
    """

    def symbols(self: Any, *parts: Any) -> Any:
        return OrderedSet() if _is_static(V.graph.sizevars) else original_symbols(self, *parts)

    return symbols


_symbols_in = functools.lru_cache(_KEPT)(lambda index: index.free_symbols)


def _drop_unused(index: Any, names: list[Any], sizes: list[Any]) -> None:
    """Drop the last dimensions that an index does not depend on.

    The symbols of an index are cached, since they are needed again and again.
    """
    if isinstance(index, _sympy.Expr):
        symbols = _symbols_in(index)
        while names and names[-1] not in symbols:
            names.pop()
            sizes.pop()


def _unbounded(original_set: Callable[..., Any]) -> Callable[..., Any]:
    """Return a set_current_node() that skips the bounds of values.

    Bounds matter only where a value indexes or is masked.
    """

    @contextlib.contextmanager
    def set_current_node(self: Any, node: Any) -> Iterator[None]:
        if set(node._body.submodules) > {"get_index"}:
            with original_set(self, node):
                yield
            return
        before, self.current_node, self.node_to_bounds = self.current_node, node, {}
        try:
            yield
        finally:
            self.current_node = before

    return set_current_node


def _run(self: Any, *args: Any, initial_env: dict[Any, Any] | None = None) -> Any:
    """Run a loop's body node by node.

    It leaves out what torch prepares for a trace or an error.
    """
    known = self.env = {} if initial_env is None else initial_env
    given = iter(args)
    with V.set_interpreter_handler(self):
        for node in self.graph.nodes:
            if node in known:
                continue
            self.current_node = node
            if node.op == "placeholder":
                known[node] = next(given)
                continue
            found = map_arg(node.args, known.__getitem__)
            options = map_arg(node.kwargs, known.__getitem__)
            known[node] = getattr(self, node.op)(node.target, found, options)
            if node.op == "output":
                return known[node]
    return None


def _once(original_init: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return an __init__ that prepares an object only once.

    The handler is one object, and torch prepares it again at each use.
    """
    ready: set[int] = set()

    def prepare(self: Any) -> None:
        if id(self) not in ready:
            original_init(self)
            ready.add(id(self))

    return prepare


def _unread(original_print: Callable[..., str]) -> Callable[..., str]:
    """Return a print_readable() that is empty if its text is not used.

    Only torch's trace and the logs of TORCH_LOGS read a graph as text.
    """
    trace, logs = logging.getLogger("torch.__trace"), _internal.log_state

    def print_readable(self: Any, print_output: bool = True, *args: Any, **options: Any) -> str:  # noqa: FBT001, FBT002 - torch's
        if print_output or trace.handlers or logs.artifact_names or logs.log_qname_to_level:
            return original_print(self, print_output, *args, **options)
        return ""

    return print_readable
