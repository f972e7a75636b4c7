"""Write a path through the heap as source: `model['conv1.weight']`."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from functools import _lru_cache_wrapper, partial
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    NoneType,
    TracebackType,
)
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.capture.interpreter.class_kinds import is_node
from nbmem.capture.interpreter.object_members import (
    Members,
    entries_of,
    first_of,
    is_a,
    is_writable,
    locals_of,
    mro_of,
    name_of,
    namespace_of,
)
from nbmem.capture.tensors.tensor_storages import locate_storage, parts_of_sparse
from nbmem.core.session.holders import Holder, HolderKind
from nbmem.core.session.tensor_names import (
    GRAPH_OF,
    IN_TRACEBACK,
    KEY_OF,
    LOCAL,
    LRU_CACHE_OF,
    as_source,
)

if TYPE_CHECKING:
    from nbmem.capture.interpreter.roots import Place

_PARTS_OF_MODULE = {f".{name}": name for name in ("_parameters", "_buffers", "_modules")}
_MAXLEN = deque.__dict__["maxlen"].__get__
_PASSED = frozenset(map(id, (CellType, FrameType, TracebackType)))
_GENERATORS = {
    id(GeneratorType): ("gi_frame", "generator"),
    id(CoroutineType): ("cr_frame", "coroutine"),
    id(AsyncGeneratorType): ("ag_frame", "generator"),
}
_TYPED = frozenset(map(id, (str, int, bool, float, bytes, NoneType)))
_SHORT = frozenset(map(id, (str, int, bool)))
_SPECIALIZED = (HolderKind.NAME, HolderKind.MODULE, HolderKind.FRAME, HolderKind.THREAD)


class _Line(NamedTuple):
    """A path that is partly written.

    Attributes:
        text: The start of the path.
        end: The end of the path.
        inner: The kind of object that the path leads through, if it is more specific than the
            place.
        dotted: The dictionary at its end, if its keys are written as attributes.
        complete: Whether further steps are not written, as the path has entered a graph or a cache.
    """

    text: str
    end: str
    inner: HolderKind | None = None
    dotted: object = None
    complete: bool = False


class PathWriter:
    """A writer of paths that remembers a container's labels.

    Attributes:
        bounds: The containers with a limit through which paths led: how many items they have and
            how many they may have.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.bounds: dict[str, tuple[int, int]] = {}
        self._members = Members()
        self._labels: dict[int, dict[int, str]] = {}
        self._keys: dict[int, frozenset[int]] = {}
        self._traits: dict[int, tuple[type, _Trait]] = {}
        self._lines: dict[int, _Line] = {}
        self._place: Place | None = None

    def holder(self, place: Place, way: Sequence[Any]) -> Holder:
        """Return the holder for the path from a place to a tensor.

        Args:
            place: The place at its start.
            way: The objects along the path, the place's own first, the tensor last. There is one
                path from a place to each object.
        """
        if place is not self._place:
            self._place = place
            self._lines = {id(way[0]): _Line(place.label, place.suffix)}
        begin = len(way) - 1
        while id(way[begin]) not in self._lines:
            begin -= 1
        line = self._lines[id(way[begin])]
        for i in range(begin, len(way) - 1):
            known = self._from_known_dictionary(line, way[i], way[i + 1])
            line = known or self._step(line, way[i], way[i + 1], way[i + 2 : i + 3])
            if self._trait(type(way[i])) not in _BY_NEXT:
                self._lines[id(way[i + 1])] = line
        kind = place.kind
        if line.inner is not None and kind in _SPECIALIZED:
            kind = line.inner
        return Holder(kind, place.root, as_source(f"{line.text} {line.end}".rstrip()))

    def _from_known_dictionary(self, line: _Line, parent: Any, child: Any) -> _Line | None:
        """Return what `_step` would, in most cases and fast; else None."""
        if type(parent) is not dict or type(child) is dict or line.complete:
            return None
        label = self._labels.get(id(parent), {}).get(id(child))
        return None if label is None else _Line(line.text + label, line.end, line.inner)

    def _step(self, line: _Line, parent: Any, child: Any, after: Sequence[Any]) -> _Line:
        """Return a partial path with one more step written."""
        if line.complete:
            return line
        of_parent, of_child = self._trait(type(parent)), self._trait(type(child))
        if of_parent is _Trait.NODE or (of_parent is _Trait.TENSOR and of_child is _Trait.NODE):
            text = f"{GRAPH_OF}{line.text}"
            return line._replace(text=text, inner=HolderKind.GRAPH, complete=True)
        if of_parent is _Trait.CACHE and all(
            child is not own for own in (parent.__dict__, parent.__wrapped__)
        ):
            kept = after[0] if type(child) is dict and after else child
            text = f"{LRU_CACHE_OF}{line.text}"
            _, _, most, items = _lru_cache_wrapper.cache_info(parent)
            self._note_bound(f"{text} {line.end}", items, most)
            prefix = KEY_OF if id(kept) in self._arguments(parent) else ""
            return line._replace(text=f"{prefix}{text}", complete=True)
        inner = HolderKind.DATALOADER if of_parent is _Trait.LOADER else line.inner
        name = _captured(parent, child, after) if of_parent is _Trait.CAPTURES else None
        if name is not None:
            # A dictionary that was visited before stays dotted: it may be the parent of this one.
            return _Line(
                *_restart_at_capture(parent, name, line.text, line.end, inner), dotted=line.dotted
            )
        if is_a(type(parent), deque):
            most = _MAXLEN(parent)
            self._note_bound(f"{line.text} {line.end}", deque.__len__(parent), most)
        text = line.text
        label = self._label(parent, child, dotted=parent is line.dotted)
        if label is None:
            text, label = f"{KEY_OF}{text}", ""
        if self._holds_attributes(parent, child, label):
            return _Line(text, line.end, inner, dotted=child)
        return _Line(text + label, line.end, inner)

    def _note_bound(self, path: str, items: int, most: int | None) -> None:
        if most is not None:
            self.bounds[as_source(path.rstrip())] = items, most

    def _arguments(self, cached: Any) -> frozenset[int]:
        """Return the ids of the arguments of all calls that a cache remembers."""
        keys = self._keys.get(id(cached))
        if keys is None:
            inside = [kept for kept in gc.get_referents(cached) if type(kept) is dict]
            keys = self._keys[id(cached)] = frozenset(id(key) for kept in inside for key in kept)
        return keys

    def _trait(self, kind: type) -> _Trait:
        known = self._traits.get(id(kind))
        if known is None:
            known = self._traits[id(kind)] = kind, _trait_of(kind, self._torch.Tensor)
        return known[1]

    def _holds_attributes(self, parent: Any, child: Any, label: str) -> bool:
        """Return whether a dictionary's keys are attributes: `model.conv1`."""
        if type(child) is not dict:
            return False
        if label in _PARTS_OF_MODULE:
            return True
        return self._members.of(parent)[0] is child

    def _label(self, parent: Any, child: Any, *, dotted: bool) -> str | None:
        """Return the text of one step; None for a dictionary's key."""
        if id(type(child)) in _PASSED or type(parent) is CellType:
            return ""
        if type(parent) is MethodType:
            return ".__self__" if child is parent.__self__ else ""
        if type(parent) is FunctionType and child is not None:
            given = {id(parent.__defaults__): ".__defaults__"}
            given[id(parent.__kwdefaults__)] = ".__kwdefaults__"
            return given.get(id(child), "")
        found = self._within_module(parent, child, dotted=dotted)
        if found is None:
            labels = self._labels.get(id(parent))
            if labels is None:
                labels = self._labels[id(parent)] = self._labels_of(parent, dotted=dotted)
            found = labels.get(id(child))
        if found is not None:
            return found
        if is_a(type(parent), dict):
            keys = self._keys.get(id(parent))
            if keys is None:
                keys = self._keys[id(parent)] = frozenset(map(id, dict.keys(parent)))
            return None if id(child) in keys else ""
        both = self._trait(type(parent)), self._trait(type(child))
        return self._of_tensor(parent, child) if both == (_Trait.TENSOR, _Trait.TENSOR) else ""

    def _within_module(self, parent: Any, child: Any, *, dotted: bool) -> str | None:
        """Return the text of a step within a module, else None.

        Most paths have such steps, and need not read all attributes of each module.
        """
        if type(child) is not dict:
            return None
        own = parent if dotted else self._members.of(parent)[0]
        if own is child:
            return ""
        parts = _PARTS_OF_MODULE.items()
        return next((label for label, name in parts if dict.get(own, name) is child), None)

    def _of_tensor(self, parent: Any, child: Any) -> str:
        """Return the text of the step from a tensor to its gradient or its part.

        A sparse tensor also leads to its dense parts.
        """
        for name, part in parts_of_sparse(self._torch, parent):
            if locate_storage(self._torch, part) == locate_storage(self._torch, child):
                return f".{name}"
        return ".grad"

    def _labels_of(self, parent: Any, *, dotted: bool) -> dict[int, str]:
        """Return the text for each object that a container or instance holds."""
        own, slots = self._members.of(parent)
        kind = type(parent)
        if is_a(kind, dict):
            write = _attribute if dotted else _key
            found = {id(value): write(key) for key, value in reversed(entries_of(parent))}
        elif is_a(kind, list):
            found = {id(value): f"[{i}]" for i, value in enumerate(list.__iter__(parent))}
        elif is_a(kind, tuple):
            found = {id(value): f"[{i}]" for i, value in enumerate(tuple.__iter__(parent))}
        elif is_a(kind, deque):
            inside = first_of(partial(deque.__iter__, parent))
            found = {id(value): f"[{i}]" for i, value in enumerate(inside)}
        else:
            found = {id(value): f".{name}" for name, value in slots}
        found.update((id(value), _attribute(name)) for name, value in entries_of(own))
        return found


class _Trait(Enum):
    """The trait of a class that decides how a step from it is written."""

    OTHER = auto()
    NODE = auto()
    TENSOR = auto()
    LOADER = auto()
    CAPTURES = auto()
    CACHE = auto()


_BY_NEXT = (_Trait.CAPTURES, _Trait.CACHE)
"""Traits of objects whose step is written by the object after the next."""


def _trait_of(kind: type, tensor: type) -> _Trait:
    if kind is FunctionType or kind is FrameType or id(kind) in _GENERATORS:
        return _Trait.CAPTURES
    if kind is _lru_cache_wrapper:
        return _Trait.CACHE
    if is_a(kind, tensor):
        return _Trait.TENSOR
    if is_node(kind):
        return _Trait.NODE
    return _Trait.LOADER if _is_loader(kind) else _Trait.OTHER


def _is_loader(kind: type) -> bool:
    return any(
        name_of(base) == "_BaseDataLoaderIter"
        and namespace_of(base).get("__module__") == "torch.utils.data.dataloader"
        for base in mro_of(kind)
    )


def _captured(parent: Any, child: Any, after: Sequence[Any]) -> str | None:
    """Return the variable by which a function or frame holds an object.

    Generators and coroutines hold variables as well. None if there is no such variable.
    """
    kind = type(parent)
    if kind is FunctionType:
        cells = parent.__closure__ or ()
        wanted = after[0] if child is cells and after else child
        named = zip(parent.__code__.co_freevars, cells, strict=False)
        return next((name for name, cell in named if cell is wanted), None)
    frame = parent if kind is FrameType else None
    if id(kind) in _GENERATORS:
        frame = getattr(parent, _GENERATORS[id(kind)][0])
    if frame is None:
        return None
    wanted = after[0] if type(child) is CellType and after else child
    return next((name for name, value in locals_of(frame).items() if value is wanted), None)


def _restart_at_capture(
    parent: Any, name: str, text: str, end: str, inner: HolderKind | None
) -> tuple[str, str, HolderKind | None]:
    """Start a path anew at a captured variable.

    Returns its text, its suffix and the kind of holder.
    """
    if type(parent) is FrameType:
        end = end or f"{IN_TRACEBACK}{text}"
        return f"{LOCAL}{name}", f"of {parent.f_code.co_name}() {end}", inner
    if type(parent) is FunctionType:
        return name, f"closed over by {text} {end}".rstrip(), HolderKind.CLOSURE
    noun = _GENERATORS[id(type(parent))][1]
    return f"{LOCAL}{name}", f"of the {noun} {text} {end}".rstrip(), HolderKind.GENERATOR


def _attribute(name: object) -> str:
    return f".{name}" if type(name) is str else _key(name)


def _key(key: object) -> str:
    """Return a key as it is typed, or `[...]`.

    `[...]` replaces a key whose text would run the key's own code.
    """
    if id(type(key)) in _TYPED and is_writable(key):
        return f"[{key!r}]"
    if type(key) is tuple and all(id(type(p)) in _SHORT and is_writable(p) for p in key):
        return f"[{', '.join(map(repr, key))}]"
    return "[...]"
