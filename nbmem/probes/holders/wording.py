"""A way through the heap as a person would type it: `checkpoint['model']['conv1.weight']`."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
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
from typing import TYPE_CHECKING, Any

from nbmem.core.holders import Holder, HolderKind
from nbmem.probes.holders.graphs import is_node
from nbmem.probes.holders.objects import attributes_of, locals_of, mro_of, namespace_of, slots_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbmem.probes.holders.places import Place

KEY_OF = "a key of "
"""How the path begins of what is held as a dictionary's key."""
_PARTS_OF_MODULE = {"._parameters", "._buffers", "._modules"}
_GENERATORS = {
    GeneratorType: ("gi_frame", "generator"),
    CoroutineType: ("cr_frame", "coroutine"),
    AsyncGeneratorType: ("ag_frame", "generator"),
}
_SPECIALIZED = (HolderKind.NAME, HolderKind.MODULE, HolderKind.FRAME, HolderKind.THREAD)


class Wording:
    """Writes ways; what it has learned of a large dictionary serves all its entries.

    Args:
        torch: The user's torch.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._labels: dict[int, dict[int, str]] = {}
        self._is_node: dict[type, bool] = {}
        self._is_loader: dict[type, bool] = {}

    def holder(self, place: Place, way: Sequence[Any]) -> Holder:
        """The way from a place to a tensor.

        Args:
            place: Where it begins.
            way: The objects along it, the place's own first, the tensor last.
        """
        text, kind, end = place.label, place.kind, place.suffix
        inner: HolderKind | None = None
        dotted: object = None
        for i, (parent, child) in enumerate(pairwise(way)):
            if self._enters_graph(parent, child):
                text, inner = f"the graph of {text}", HolderKind.GRAPH
                break
            if _once(self._is_loader, type(parent), _is_loader):
                inner = HolderKind.DATALOADER
            name = _captured(parent, child, way[i + 2 : i + 3])
            if name is not None:
                text, end, inner = _leave(parent, name, text, end, inner)
                continue
            label = self._label(parent, child, dotted=parent is dotted)
            if label is None:
                text, label = f"{KEY_OF}{text}", ""
            dotted = child if self._holds_attributes(parent, child, label) else None
            text += "" if dotted is not None else label
        if inner is not None and kind in _SPECIALIZED:
            kind = inner
        return Holder(kind, place.root, f"{text} {end}".rstrip())

    def _enters_graph(self, parent: Any, child: Any) -> bool:
        if _once(self._is_node, type(parent), is_node):
            return True
        is_tensor = self._torch.Tensor in mro_of(type(parent))
        return is_tensor and _once(self._is_node, type(child), is_node)

    def _holds_attributes(self, parent: Any, child: Any, label: str) -> bool:
        """Whether a dictionary's keys are written as attributes: `model.conv1`."""
        if type(child) is not dict:
            return False
        if label in _PARTS_OF_MODULE:
            return True
        return attributes_of(parent) is child

    def _label(self, parent: Any, child: Any, *, dotted: bool) -> str | None:
        """What is appended for one step; None for a dictionary's key."""
        if type(child) in (CellType, FrameType, TracebackType) or type(parent) is CellType:
            return ""
        if type(parent) is MethodType:
            return ".__self__" if child is parent.__self__ else ""
        labels = self._labels.get(id(parent))
        if labels is None:
            labels = self._labels[id(parent)] = _labels_of(parent, dotted=dotted)
        found = labels.get(id(child))
        if found is not None:
            return found
        if dict in mro_of(type(parent)):
            return None
        both = mro_of(type(parent)), mro_of(type(child))
        return ".grad" if all(self._torch.Tensor in bases for bases in both) else ""


def _once(known: dict[type, bool], kind: type, ask: Callable[[type], bool]) -> bool:
    """An answer about a class, asked once in a walk (longer, and the class would be held)."""
    found = known.get(kind)
    if found is None:
        found = known[kind] = ask(kind)
    return found


def _is_loader(kind: type) -> bool:
    return any(
        base.__name__ == "_BaseDataLoaderIter"
        and namespace_of(base).get("__module__") == "torch.utils.data.dataloader"
        for base in mro_of(kind)
    )


def _captured(parent: Any, child: Any, after: Sequence[Any]) -> str | None:
    """The name of the variable by which a function, generator or frame holds something."""
    kind = type(parent)
    if kind is FunctionType:
        cells = parent.__closure__ or ()
        wanted = after[0] if child is cells and after else child
        named = zip(parent.__code__.co_freevars, cells, strict=False)
        return next((name for name, cell in named if cell is wanted), None)
    frame = parent if kind is FrameType else None
    if kind in _GENERATORS:
        frame = getattr(parent, _GENERATORS[kind][0])
    if frame is None:
        return None
    wanted = after[0] if type(child) is CellType and after else child
    return next((name for name, value in locals_of(frame).items() if value is wanted), None)


def _leave(
    parent: Any, name: str, text: str, end: str, inner: HolderKind | None
) -> tuple[str, str, HolderKind | None]:
    """The path begins anew at a captured variable: its text, what ends it, what it is."""
    if type(parent) is FrameType:
        end = end or f"in the traceback of {text}"
        return f"local {name}", f"of {parent.f_code.co_name}() {end}", inner
    if type(parent) is FunctionType:
        return name, f"closed over by {text} {end}".rstrip(), HolderKind.CLOSURE
    noun = _GENERATORS[type(parent)][1]
    return f"local {name}", f"of the {noun} {text} {end}".rstrip(), HolderKind.GENERATOR


def _labels_of(parent: Any, *, dotted: bool) -> dict[int, str]:
    """For each object that a container or an instance holds, what one would append."""
    bases = mro_of(type(parent))
    if dict in bases:
        write = _attribute if dotted else _key
        found = {id(value): write(key) for key, value in reversed(list(dict.items(parent)))}
    elif list in bases:
        found = {id(value): f"[{i}]" for i, value in enumerate(list.__iter__(parent))}
    elif tuple in bases:
        found = {id(value): f"[{i}]" for i, value in enumerate(tuple.__iter__(parent))}
    elif deque in bases:
        found = {id(value): f"[{i}]" for i, value in enumerate(deque.__iter__(parent))}
    else:
        found = {id(value): f".{name}" for name, value in slots_of(parent)}
    own = attributes_of(parent) or {}
    return found | {id(value): _attribute(name) for name, value in own.items()}


def _attribute(name: object) -> str:
    return f".{name}" if type(name) is str else _key(name)


def _key(key: object) -> str:
    """A key as it is typed; one whose text would be code of its own is `[...]`."""
    if type(key) in (str, int, bool, float, bytes, NoneType):
        return f"[{key!r}]"
    if type(key) is tuple and all(type(part) in (str, int, bool) for part in key):
        return f"[{', '.join(map(repr, key))}]"
    return "[...]"
