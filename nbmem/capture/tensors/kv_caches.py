"""Find the storages that caches of language models hold.

A cache is an object of transformers' class Cache, or a tuple with a tuple of tensors for each layer
that a model is given as `past_key_values`, as earlier releases did.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nbmem.capture.interpreter.object_members import attributes_of, mro_of, name_of, namespace_of
from nbmem.capture.tensors.modules import is_plain_sequence, is_tensor
from nbmem.capture.tensors.tensor_storages import data_of
from nbmem.capture.tensors.tensors import ObservedStorage, is_made, observe_parts
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_parts import KV_CACHE

_MODULE = "transformers.cache_utils"
_GIVEN_AS = "past_key_values"
MAX_TENSORS = 20_000
_MAX_DEPTH = 4
_MIN_DIMENSIONS = 3
"""A layer's counters of tokens have fewer."""


def is_cache(value: object) -> bool:
    """Return whether a value is a cache of transformers."""
    if _MODULE not in sys.modules:
        return False
    return any(
        name_of(base) == "Cache" and namespace_of(base).get("__module__") == _MODULE
        for base in mro_of(type(value))
    )


def given_caches(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the caches that a call is given."""
    found = [value for value in (*args, *kwargs.values()) if is_cache(value)]
    legacy = kwargs.get(_GIVEN_AS)
    return [*found, legacy] if is_plain_sequence(legacy) else found


def without_caches(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], caches: Iterable[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments without caches.

    Caches have a name of their own. The place of one among the positional arguments is None.
    """
    found = {id(cache) for cache in caches}
    rest = {name: value for name, value in kwargs.items() if id(value) not in found}
    return tuple(None if id(value) in found else value for value in args), rest


class CacheCollector:
    """Collects the caches that a search through variables meets."""

    def __init__(self) -> None:
        self._found: list[Any] = []

    def also(self, met: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
        """Return a callback that calls another one and collects caches."""

        def both(name: str, value: Any) -> None:
            met(name, value)
            if is_cache(value):
                self._found.append(value)

        return both

    def pop(self) -> list[Any]:
        """Return what was collected, and retain it no longer."""
        found, self._found = self._found, []
        return found


def tensors_of_cache(cache: Any) -> list[Any]:
    """Return the keys and values that a cache holds, by layer."""
    return list(_tensors(cache, _MAX_DEPTH))[:MAX_TENSORS]


def _tensors(value: Any, deep: int) -> Iterator[Any]:
    if is_tensor(value):
        if _dimensions(value) >= _MIN_DIMENSIONS:
            yield value
        return
    if not deep:
        return
    kind = type(value)
    if kind is list or kind is tuple:
        inner = list(value)
    elif kind is dict:
        inner = list(value.values())
    elif namespace_of(kind).get("__module__") == _MODULE or is_cache(value):
        inner = list((attributes_of(value) or {}).values())
    else:
        return
    for one in inner:
        yield from _tensors(one, deep - 1)


def _dimensions(tensor: Any) -> int:
    torch: Any = loaded_torch()
    return len(torch.Tensor.shape.__get__(tensor))


def storages_of_cache(tensors: Iterable[Any]) -> Iterator[ObservedStorage]:
    """Yield the storages of a cache's tensors.

    They are inputs of the model, unless a graph that is kept for backward made some of them.
    """
    found = list(tensors)
    category = Category.ACTIVATIONS if any(map(is_made, found)) else Category.INPUTS
    for tensor in found:
        for seen in observe_parts(tensor, category, KV_CACHE):
            # A quantized tensor's parts have one name, too: no `._data` and `._scale`.
            form = seen.name.rpartition(" (")[2]
            yield seen._replace(name=f"{KV_CACHE} ({form}", part=KV_CACHE)


class CacheLog:
    """Finds caches that have changed since they were seen.

    Retains no cache and no tensor.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[tuple[int, int], ...]] = {}
        self._forms: set[tuple[Any, ...]] = set()

    def changed(self, caches: Iterable[Any]) -> list[ObservedStorage]:
        """Return the storages of the caches whose tensors are others now."""
        torch: Any = loaded_torch()
        found: list[ObservedStorage] = []
        for cache in caches:
            tensors = tensors_of_cache(cache)
            footprint = tuple((id(one), data_of(torch, one) or 0) for one in tensors)
            if footprint and self._seen.get(id(cache)) != footprint:
                self._seen[id(cache)] = footprint
                found += storages_of_cache(tensors)
                if is_plain_sequence(cache):
                    self._forms.add(_form(cache))
        return found

    def like_given(self, namespace: Mapping[str, Any]) -> list[Any]:
        """Return the variables that are tuples like one that a model was given."""
        if not self._forms:
            return []
        return [
            value
            for value in list(namespace.values())
            if is_plain_sequence(value) and _form(value) in self._forms
        ]


def _form(layers: Any) -> tuple[Any, ...]:
    """Return what equals in the tuples of one model: layers, heads, types.

    The batch and the number of tokens may differ.
    """
    torch: Any = loaded_torch()
    shape, dtype = torch.Tensor.shape.__get__, torch.Tensor.dtype.__get__
    tensors = list(_tensors(layers, _MAX_DEPTH))
    return len(layers), *((tuple(shape(one))[1::2], dtype(one)) for one in tensors)
