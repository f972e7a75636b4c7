"""Name the tensors of compiled regions after modules and operators.

These are the tensors that a region saves and the buffers that it allocates.

A region is one node of the graph. Its wrappers' texts (inductor_wrapper.py) show what each storage
is computed from; the node's edges show which parameter each argument is. A storage computed from a
module's parameter belongs to that module. Any other storage follows the module of its first input,
as in an eager graph (saved_tensors.py). If the text names the module, that name is used.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.capture.graphs.inductor_wrapper import read_wrapper
from nbmem.capture.interpreter.notebook_cells import cell_of
from nbmem.capture.interpreter.object_members import attributes_of, namespace_of
from nbmem.capture.tensors.tensors import ObservedStorage
from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import BACKWARD_OF, BUFFER_OF, RECOMPUTED

if TYPE_CHECKING:
    from nbmem.capture.graphs.node_modules import ModulePath
    from nbmem.capture.graphs.wrapper_buffers import Buffer, CompiledGraph

NODE = "CompiledFunctionBackward"
"""Name of a compiled region's node, which takes the parameters of all its modules."""
NOWHERE = 0
"""Address of a storage that was not observed."""
SMALLEST = 64 * 1024
"""Bytes from which a buffer is named."""
_MAX_DEPTH = 64
"""Steps back in the search for the module before a buffer."""
_MAX_OBJECTS = 64
_TEXTS = 256


class StorageOrigin(NamedTuple):
    """The place in the program where a region's storage comes from.

    Attributes:
        module: The module that the storage belongs to, or that it follows; None if none is known.
        own: Whether it belongs to the module.
        operator: ATen's operator that computes it.
        line: `net.py:12`; empty if unknown.
    """

    module: ModulePath | None
    own: bool
    operator: str
    line: str

    def named(self, before: str, after: str, form: str) -> tuple[str, str, Any]:
        """Return a name, its prefix and the owner, for an `ObservedStorage`."""
        if self.module is None:
            line = f" ({self.line})" if self.line else ""
            return f"{before}{self.operator or 'a region'}{line} {form}", "", None
        word = before if self.own else after
        return f"{self.path} {form}", word, self.module.owner

    @property
    def path(self) -> str:
        """The module's path, followed by the operator and the line."""
        words = ", ".join(word for word in (self.operator, self.line) if word)
        return f"{'' if self.module is None else self.module.path}{words and f' ({words})'}"


class Region:
    """A compiled region: one node of an autograd graph.

    Args:
        forward: The parsed wrapper of its forward.
        backward: The parsed wrapper of its backward; None if it is not compiled yet.
        modules: The module of each argument of the forward, in order.
        first_saved: Index of the forward's first result that is saved for backward.
    """

    def __init__(
        self,
        forward: CompiledGraph,
        backward: CompiledGraph | None,
        modules: Sequence[ModulePath | None],
        first_saved: int,
    ) -> None:
        self._forward, self._backward = forward, backward
        self._saved = forward.results[first_saved:]
        self._symbols: dict[str, int] = {}
        known = zip(forward.arguments, modules, strict=False)
        self._of_argument = {name: module for name, module in known if module is not None}
        self._sources = {s for b in _values(forward) for s in b.sources}
        self._roots = self._find_roots()
        self._storages = {b.name: b for b in forward.buffers}
        # The backward receives the saved tensors under names of its own.
        self._given: dict[str, Buffer] = {}
        if backward is not None:
            for name, storage in zip(backward.arguments, self._saved, strict=False):
                if storage in self._of_argument:
                    self._of_argument[name] = self._of_argument[storage]
                elif storage in self._storages:
                    self._given[name] = self._final(storage)

    def learn_shapes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Learn the graph's symbols from the shapes of its saved tensors."""
        for storage, shape in zip(self._saved, shapes, strict=False):
            code = self._storages[storage].shape if storage in self._storages else ()
            if len(code) == len(shape):
                self._symbols |= {
                    c: n for c, n in zip(code, shape, strict=True) if c.isidentifier()
                }

    def saved(self, index: int) -> StorageOrigin | int | None:
        """Return the origin of a saved tensor, or the index of its argument.

        The index is returned if the tensor is an argument of the region. None if the wrapper does
        not show the origin.
        """
        storage = self._saved[index] if index < len(self._saved) else None
        if storage in self._forward.arguments:
            return self._forward.arguments.index(storage)
        return self._place(self._final(storage)) if storage in self._storages else None

    def result(self, index: int) -> StorageOrigin | None:
        """Return the origin of a result; None for an argument or if unknown."""
        storage = self._forward.results[index] if index < len(self._forward.results) else None
        return self._place(self._final(storage)) if storage in self._storages else None

    def planned(self, card: int) -> Iterator[ObservedStorage]:
        """Yield the region's buffers: those of its forward, then its backward.

        Buffers below `SMALLEST` bytes, and those of unknown size, are left out.
        """
        for wrapper, category in (
            (self._forward, Category.ACTIVATIONS),
            (self._backward, Category.TEMPORARIES),
        ):
            for buffer in wrapper.buffers if wrapper is not None else ():
                form = buffer.form(self._symbols)
                if form is None or form[1] < SMALLEST:
                    continue
                words = BUFFER_OF, BUFFER_OF
                if wrapper is self._backward:
                    again = self._is_forwards(buffer)
                    words = (RECOMPUTED, RECOMPUTED) if again else (BACKWARD_OF, BACKWARD_OF)
                name = self._place(buffer).named(*words, form[0])
                yield ObservedStorage(card, NOWHERE, form[1], category, *name)

    def _final(self, storage: str) -> Buffer:
        return self._forward.last.get(storage) or self._storages[storage]

    def _is_forwards(self, buffer: Buffer) -> bool:
        """Return whether a buffer of the backward is recomputed.

        It is recomputed if the forward computed it as well.
        """
        if buffer.annotation is not None and buffer.annotation.direction:
            return buffer.annotation.direction == "forward"
        return bool(buffer.sources) and self._sources.issuperset(buffer.sources)

    def _place(self, buffer: Buffer) -> StorageOrigin:
        annotation = buffer.annotation
        operator, line = buffer.operators, ""
        module = self._named(annotation.module) if annotation is not None else None
        if annotation is not None:
            operator = annotation.operator or operator
            line = (
                f"{cell_of(annotation.file) or Path(annotation.file).name}:{annotation.line}"
                if annotation.file
                else ""
            )
        if module is not None:
            return StorageOrigin(module, own=True, operator=operator, line=line)
        return StorageOrigin(*self._behind(buffer), operator, line)

    def _behind(self, buffer: Buffer, deep: int = 0) -> tuple[ModulePath | None, bool]:
        """Return the module of a buffer's parameter, else of its first input.

        Also returns whether the buffer is computed directly from the module's parameter.
        """
        for name in buffer.reads:
            if name in self._of_argument:
                return self._of_argument[name], not deep
        buffers = {b.name: b for b in self._backward.buffers} if self._backward else {}
        for name in buffer.reads if deep < _MAX_DEPTH else ():
            before = self._given.get(name) or self._storages.get(name) or buffers.get(name)
            if before is not None and before is not buffer:
                module, _ = self._behind(before, deep + 1)
                if module is not None:
                    return module, False
        return None, False

    def _named(self, path: str) -> ModulePath | None:
        """Return the module of a Dynamo path: `L['self'].blocks.0`."""
        root, inner = _split(path)
        outer = self._roots.get(root)
        return outer and outer._replace(path=outer.path + inner, parameter="")

    def _find_roots(self) -> dict[str, ModulePath]:
        """Map Dynamo's root names to modules, by votes of their parameters.

        A buffer votes for the module whose parameter it takes.
        """
        votes: dict[str, Counter[ModulePath]] = {}
        for buffer in _values(self._forward):
            root, inner = (
                _split(buffer.annotation.module) if buffer.annotation is not None else ("", "")
            )
            for name in buffer.reads if root else ():
                module = self._of_argument.get(name)
                if module is not None and module.path.endswith(inner):
                    outer = module.path.removesuffix(inner)
                    counts = votes.setdefault(root, Counter())
                    counts[module._replace(path=outer, parameter="")] += 1
        return {root: found.most_common(1)[0][0] for root, found in votes.items()}


def region_of(node: Any, modules: Sequence[ModulePath | None]) -> Region | None:
    """Return the compiled region of a graph node, or None.

    None for any other node, or if its wrapper's text is missing.

    Args:
        node: A node of a graph.
        modules: The module of the parameter behind each edge of it.
    """
    try:
        function = namespace_of(type(node)).get("_forward_cls")
        if node.name() != NODE or function is None:
            return None
        parts = namespace_of(function)
        forward, backward = _text_of(parts.get("compiled_fw")), _text_of(parts.get("compiled_bw"))
        wrapper = None if forward is None else _read(forward)
        if wrapper is None:
            return None
        later = None if backward is None else _read(backward)
        return Region(wrapper, later, modules, parts["metadata"].num_forward)
    except Exception as err:  # noqa: BLE001 - other releases' regions keep one name
        reraise_if_from_signal(err)
        return None


@functools.lru_cache(maxsize=_TEXTS)
def _read(file: str) -> CompiledGraph | None:
    try:
        return read_wrapper(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def _text_of(compiled: Any) -> str | None:
    """Find the file of a compiled graph's wrapper without calling anything.

    A wrapper's `call` is reached through closures and Inductor's graph object.
    """
    seen: set[int] = set()
    queue = [compiled]
    while queue and len(seen) < _MAX_OBJECTS:
        one = queue.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, MethodType):
            one = one.__func__
        if isinstance(one, FunctionType):
            if one.__code__.co_name == "call" and "run" not in Path(one.__code__.co_filename).parts:
                return one.__code__.co_filename
            queue += [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
        elif isinstance(one, partial):
            queue += [one.func, *one.args]
        elif type(one).__module__.startswith("torch._"):
            inner = attributes_of(one) or {}
            queue += [inner.get("compiled_fn_runner"), inner.get("current_callable")]
        elif namespace_of(type(one)).get("call") is not None:
            queue.append(namespace_of(type(one))["call"])
    return None


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _values(wrapper: CompiledGraph) -> Iterator[Buffer]:
    yield from wrapper.buffers
    yield from wrapper.last.values()


def _split(path: str) -> tuple[str, str]:
    """Split a Dynamo path into root and rest: `L['self']`, `.blocks.0`."""
    root, bracket, inner = path.partition("]")
    return (root + bracket, inner) if bracket else (path, "")
