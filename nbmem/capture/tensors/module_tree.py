"""Read the parts of a module in one walk, cached until one changes.

A notebook has models of thousands of modules that most cells do not use. The identities of its
members and the addresses of their data show whether such a model is unchanged. That takes some
microseconds for each module; a walk takes fifty. A tree holds weak references to modules only, and
is dropped once its module is freed. It has none to tensors, because torch refuses to swap a tensor
that has a weak reference (`torch.utils.swap_tensors`).
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from itertools import chain, compress
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from nbmem.capture.tensors.modules import (
    is_embedding,
    is_parameter_list,
    items_of,
    named_modules,
    own_attributes,
)
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.runtime.interrupts import reraise_if_from_signal

MAX_MODULES = 20_000
"""Modules in all cached trees, 2.4 kB each with two parameters: 45 MiB. Trees beyond this limit are
rebuilt each time."""
_parts_of = itemgetter("_parameters", "_buffers", "_modules")
_identity_of = attrgetter("_cdata")
_DICTIONARIES = frozenset(map(id, (dict, OrderedDict)))


class TensorPlace(NamedTuple):
    """A place where a module registers a tensor.

    Attributes:
        path: The path from the tree's module to the tensor.
        ref: Returns the tensor when called, or None if it is no longer there. It retains nothing.
        inner: Index of the tree's module that registers it.
        lookup: Whether that module looks up rows in it (an embedding).
        listed: Whether that module only lists it for the module that contains the list.
    """

    path: str
    ref: Callable[[], Any]
    inner: int = 0
    lookup: bool = False
    listed: bool = False


class _Member:
    """A reference to a module's registered tensor by name and identity."""

    __slots__ = ("key", "module", "name", "part")

    def __init__(self, module: Any, part: str, name: str, tensor: Any) -> None:
        self.module: weakref.ref[Any] = weakref.ref(module)
        self.part, self.name, self.key = part, name, id(tensor)

    def __call__(self) -> Any:
        """Return the tensor; None if it is no longer registered there."""
        module = self.module()
        kept: Any = None if module is None else own_attributes(module).get(self.part)
        tensor = dict.get(kept, self.name) if issubclass(type(kept), dict) else None
        return tensor if id(tensor) == self.key else None


class ModuleTree:
    """The modules inside a module, itself first, with their tensors.

    It knows where parameters and buffers are registered.

    Attributes:
        ref: A weak reference to the module.
        paths: The path of each module inside, by its id.
        parameters: Where parameters are registered: a tied one at each of its places.
        buffers: Where buffers are registered, likewise.
        places: The first place of each parameter, by its id.
        tied: The path in a module of the other kind, if an embedding and a head share a parameter,
            by its id.
        remembered: What other code has derived from this tree, by a key.
    """

    __slots__ = (
        "_index",
        "_inner",
        "_state",
        "buffers",
        "parameters",
        "paths",
        "places",
        "ref",
        "remembered",
        "tied",
    )

    def __init__(self, module: Any) -> None:
        found = list(named_modules(module))
        self.ref = weakref.ref(module)
        self.paths = {id(inner): path for path, inner in found}
        self._index = {id(inner): index for index, (_, inner) in enumerate(found)}
        self._inner = [weakref.ref(inner) for _, inner in found]
        self._state = _state([inner for _, inner in found])
        self.parameters = list(_places(found, "_parameters", lasts=self.is_plain))
        self.buffers = list(_places(found, "_buffers", lasts=self.is_plain))
        self.places: dict[int, TensorPlace] = {}
        self.tied: dict[int, str] = {}
        for place in self.parameters:
            first = self.places.setdefault(id(place.ref()), place)
            if first.lookup != place.lookup:
                self.tied.setdefault(id(place.ref()), f".{place.path}")
        self.remembered: dict[Any, Any] = {}

    def __len__(self) -> int:
        """Return the number of modules."""
        return len(self._inner)

    def modules(self) -> list[Any]:
        """Return the modules that still live, in the order of the walk."""
        return [inner for ref in self._inner if (inner := ref()) is not None]

    def ref_at(self, index: int) -> weakref.ref[Any]:
        """Return a weak reference to a module, by its position in the walk."""
        return self._inner[index]

    def module_of(self, key: int) -> Any:
        """Return one of the modules by its id, or None if it is gone."""
        return self._inner[self._index[key]]()

    def parameters_once(self) -> Iterable[Any]:
        """Return each parameter that is still there once, in order."""
        if self.is_plain:
            return self._in_bulk(self.places)
        return (one for place in self.places.values() if (one := place.ref()) is not None)

    def with_gradient(self, keys: Iterable[int]) -> list[Any]:
        """Return the parameters of these ids that have a gradient.

        The parameters must be this thread's.
        """
        return _with_gradient(one for key in keys if (one := self.places[key].ref()) is not None)

    def all_with_gradient(self, keys: Collection[int]) -> list[Any]:
        """Return the parameters of these ids that have a gradient, in bulk.

        For most of the parameters' ids. It takes half a microsecond each.
        """
        return _with_gradient(self._in_bulk(keys)) if self.is_plain else self.with_gradient(keys)

    def _in_bulk(self, keys: Container[int]) -> list[Any]:
        """Return the parameters of these ids once, by reading every module.

        Of a plain tree. It takes a quarter of a microsecond each; a place takes one.
        """
        torch: Any = loaded_torch()
        own = vars(torch.nn.Module)["__dict__"].__get__
        parts = [own(inner).get("_parameters") for inner in self.modules()]
        kept = [part for part in parts if issubclass(type(part), dict)]
        values = list(chain.from_iterable(map(dict.values, kept)))
        once = dict(zip(map(id, values), values, strict=True))
        return [one for key, one in once.items() if key in keys]

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield path and tensor of each parameter, a tied one once."""
        return _each_once(self.parameters)

    def named_buffers(self) -> Iterator[tuple[str, Any]]:
        """Yield path and tensor of each buffer, a tied one once."""
        return _each_once(self.buffers)

    def tensors(self) -> Iterator[Any]:
        """Yield each living parameter and buffer.

        A tied one is repeated at each of its places.
        """
        for place in (*self.parameters, *self.buffers):
            if (tensor := place.ref()) is not None:
                yield tensor

    @property
    def is_plain(self) -> bool:
        """True if a change of the module can be detected."""
        return self._state is not None

    def holds(self) -> bool:
        """Return True if no member and no address of data has changed.

        False also if changes cannot be detected.
        """
        inner = self.modules()
        return self._state is not None and len(inner) == len(self) and self._state == _state(inner)


def tree_of(module: Any) -> ModuleTree:
    """Return a module's tree, from the cache if it is still valid."""
    known = _remembered.get(module)
    if known is not None and known.ref() is module and known.holds():
        return known
    tree = ModuleTree(module)
    if tree.is_plain:
        _remembered.add(module, tree)
    return tree


def forget_trees() -> None:
    """Clear the cache of trees."""
    _remembered.clear()


class _Ref(weakref.ref[Any]):
    """A weak reference to a module whose tree is cached, with its id."""

    __slots__ = ("key",)
    key: int


class _TreeCache:
    """A cache of living modules' trees by id.

    It counts the modules in all of them.
    """

    def __init__(self) -> None:
        self._trees: dict[int, ModuleTree] = {}
        self._refs: dict[int, _Ref] = {}
        self._gone: list[_Ref] = []  # no code of ours runs when a module is freed
        self._count = 0

    def get(self, module: Any) -> ModuleTree | None:
        self._drop_collected()
        return self._trees.get(id(module))

    def add(self, module: Any, tree: ModuleTree) -> None:
        self._drop_collected()
        key = id(module)
        self._drop(key)
        if self._count + len(tree) > MAX_MODULES:
            return
        ref = self._refs[key] = _Ref(module, self._gone.append)
        ref.key = key
        self._trees[key] = tree
        self._count += len(tree)

    def _drop_collected(self) -> None:
        while self._gone:
            ref = self._gone.pop()
            if self._refs.get(ref.key) is ref:
                self._drop(ref.key)

    def _drop(self, key: int) -> None:
        self._refs.pop(key, None)
        tree = self._trees.pop(key, None)
        if tree is not None:
            self._count -= len(tree)

    def clear(self) -> None:
        for key in list(self._trees):
            self._drop(key)
        self._gone.clear()


_remembered = _TreeCache()


def _with_gradient(parameters: Iterable[Any]) -> list[Any]:
    torch: Any = loaded_torch()
    plain = torch.Tensor
    found = list(parameters)
    leaves = list(compress(found, map(plain.is_leaf.__get__, found)))
    gradients = map(plain.grad.__get__, leaves)
    return [one for one, grad in zip(leaves, gradients, strict=True) if grad is not None]


def _places(found: Sequence[tuple[str, Any]], part: str, *, lasts: bool) -> Iterator[TensorPlace]:
    """Yield the places where tensors are registered.

    Args:
        found: Modules with their paths.
        part: The name of their dictionaries.
        lasts: Whether the tree is cached. Otherwise there may be tensors of a scripted module,
            which torch recreates at each read.
    """
    torch: Any = loaded_torch()
    kind = torch.Tensor
    for index, (path, inner) in enumerate(found):
        items = items_of(inner, part)
        if not items:
            continue
        before = f"{path}." if path else ""
        lookup, listed = is_embedding(inner), is_parameter_list(inner)
        for name, tensor in items:
            if issubclass(type(tensor), kind):
                ref = _Member(inner, part, name, tensor) if lasts else weakref.ref(tensor)
                yield TensorPlace(f"{before}{name}", ref, index, lookup, listed)


def _each_once(places: Sequence[TensorPlace]) -> Iterator[tuple[str, Any]]:
    seen = set()
    for place in places:
        tensor = place.ref()
        if tensor is not None and id(tensor) not in seen:
            seen.add(id(tensor))
            yield place.path, tensor


def _state(inner: Sequence[Any]) -> list[Any] | None:
    """Return what changes with any member of these modules, or None.

    It contains the length and keys of each dictionary, the identity of each member, and the form
    and storage of each tensor. None if a change cannot be detected.
    """
    torch: Any = loaded_torch()
    plain, parameter = torch.Tensor, torch.nn.Parameter
    own = vars(torch.nn.Module)["__dict__"].__get__
    try:
        parts = list(chain.from_iterable(map(_parts_of, map(own, inner))))
        if not set(map(id, map(type, parts))) <= _DICTIONARIES:
            return None  # of a scripted module, or the program's own class
        members = list(chain.from_iterable(map(dict.values, parts)))
        kinds = list(map(type, members))
        by_id = dict(zip(map(id, kinds), kinds, strict=True))
        others = [kind for kind in by_id.values() if not (kind is parameter or kind is plain)]
        if any(issubclass(kind, plain) for kind in others):
            return None  # a wrapper's inner tensors may change
        tensors = [one for one in members if (kind := type(one)) is parameter or kind is plain]
        state: list[Any] = [*map(dict.__len__, parts), *chain.from_iterable(parts)]
        state += map(id, members)
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - a mode of the program's
            storages = list(map(plain.untyped_storage, tensors))
            state += map(plain.data_ptr, tensors)
            state += map(plain.dtype.__get__, tensors)
            state += map(plain.shape.__get__, tensors)
            state += map(plain.stride, tensors)
            state += map(_identity_of, storages)
            state += map(torch.UntypedStorage.nbytes, storages)
    except Exception as err:  # noqa: BLE001 - sparse, a wrapper, changed by another thread meanwhile
        reraise_if_from_signal(err)
        return None
    return state
