"""Large CPU tensors whose pages are written at the first read.

A model that is built on the CPU and moved to the card has weights that are never read. So an
operator that would fill a large tensor is only recorded, as a step of the tensor's recipe, and its
pages stay untouched. The first operator that reads the tensor runs the recipe first. A random step
draws a seed from its generator, so a copy has the same numbers as its source. The numbers differ
from those of a run without deferral.

Such a tensor is an ordinary one. A stand-in without data would have to support every path of C++.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import compute_required_storage_length

from nbmem.virtual.devices import CPU, cpp_device
from nbmem.virtual.tensors.host.pages import untouched
from nbmem.virtual.tensors.host.recipes import (
    Recipe,
    RecipeSource,
    View,
    run_recipe,
    without_dispatch,
)
from nbmem.virtual.tensors.operator_call import OperatorCall, facts_of
from nbmem.virtual.tensors.shapes import TensorSpec, infer

if TYPE_CHECKING:
    import threading

LARGE = 1 << 20
"""Bytes of a storage from which it is left unwritten."""
TINY = 1 << 16
"""Bytes up to which a written tensor is copied into a recipe that uses it."""
LONGEST = 64
"""Steps of a recipe, with those of the tensors that it uses; a longer one is run at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRule:
    """A rule for an operator on large CPU tensors that stay unwritten.

    Attributes:
        factory: Whether its result is a new tensor that can be left unwritten.
        fill: The in-place operator that fills a factory's result; None: it holds zeros, or nothing.
        filling: Returns the arguments of that operator from the factory's call.
        overwrites: Whether it writes all of its first argument without reading it.
        copies: Whether it reads one tensor and writes another, so that it can wait.
    """

    factory: bool = False
    fill: Any = None
    filling: Callable[[OperatorCall], tuple[Any, ...]] = lambda _call: ()
    overwrites: bool = False
    copies: bool = False


class _WrittenError(Exception):
    """A large argument is written already: the operator must run."""


class LazyStorage(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to an unwritten storage.

    Attributes:
        key: The storage's identity.
        recipe: What it would hold; None for zeros.
    """

    __slots__ = ("key", "recipe")

    key: int
    recipe: Recipe | None


class LazyTensors:
    """The large CPU tensors that have not been read yet.

    Attributes:
        everything: Whether all of them are left unwritten, or only pinned ones, which are there
            for copies to and from the card.
    """

    def __init__(
        self, rule_of: Callable[[Any], HostRule], lock: threading.RLock, *, everything: bool
    ) -> None:
        self._rule_of = rule_of
        self.everything = everything
        self._kept: dict[int, LazyStorage] = {}
        self._lock = lock

    def run(self, call: OperatorCall, *, pinned: bool = False) -> Any:
        """Run an operator on the CPU, or defer it."""
        if self._rule_of(call.func).factory:
            here = "device" in call.kwargs or all(cpp_device(t) == CPU for t in call.tensors)
            made = self._made(call) if here and (self.everything or pinned) else None
            if made is not None:
                return made
        elif self._kept:
            facts = facts_of(call.func)
            kept = [t for t in call.tensors if self.kept_of(t) is not None]
            if kept and not facts.view and not facts.reshapes:
                noted = self._defer(call)
                if noted is not None:
                    return noted
                for tensor in kept:
                    self.write(tensor.untyped_storage())
        return call.func(*call.args, **call.kwargs)

    def note(
        self,
        function: Any,
        tensor: torch.Tensor,
        args: tuple[Any, ...],
        generator: torch.Generator | None,
    ) -> bool:
        """Defer a function that fills a tensor; return False if it must run."""
        kept = self.kept_of(tensor)
        if kept is None:
            return False
        call = OperatorCall(function, args, {})
        step = self._step(call, _view(tensor), kept, _draw(generator))
        kept.recipe = step or kept.recipe
        return step is not None

    def write(self, storage: torch.UntypedStorage) -> None:
        """Run a storage's recipe before the storage is read."""
        if storage._cdata not in self._kept:
            return
        with self._lock:
            kept = self._kept.get(storage._cdata)
            if kept is not None:
                run_recipe(kept.recipe, storage)
                self._forget(kept)

    def write_tensor(self, tensor: torch.Tensor) -> None:
        """Write the storage of a tensor."""
        if self._kept and self.kept_of(tensor) is not None:
            self.write(tensor.untyped_storage())

    def write_small(self, call: OperatorCall) -> None:
        """Write a call's small arguments, whose values the card may look at."""
        for tensor in call.tensors if self._kept else ():
            if self.kept_of(tensor) is not None and tensor.numel() * tensor.element_size() <= TINY:
                self.write(tensor.untyped_storage())

    def zeros(self, view: View, recipe: Recipe | None = None) -> torch.Tensor:
        """Make a tensor of untouched pages with zeros or a deferred recipe.

        Raises:
            MemoryError: This machine cannot reserve so much.
        """
        nbytes = compute_required_storage_length(view.size, view.stride, 0) * view.dtype.itemsize
        return self._fresh(nbytes, view, recipe) if self.everything else view.of(untouched(nbytes))

    def copy(self, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
        """Copy an unwritten storage lazily; None if this one is written."""
        kept = self._kept.get(storage._cdata)
        if kept is None:
            return None
        copy = untouched(storage.nbytes())
        self._keep(copy, kept.recipe)
        return copy

    def forget(self) -> None:
        """Write the pinned tensors as the card goes, and forget all recipes.

        With `everything` nothing is written: tensors stay unwritten to the end.
        """
        for kept in () if self.everything else tuple(self._kept.values()):
            storage = kept()
            if storage is not None:
                self.write(storage)
        self._kept.clear()

    def kept_of(self, tensor: torch.Tensor) -> LazyStorage | None:
        """Return the record of an unwritten tensor; None for an ordinary one."""
        if cpp_device(tensor) != CPU or tensor.layout is not torch.strided:
            return None
        return self._kept.get(tensor.untyped_storage()._cdata)

    def _made(self, call: OperatorCall) -> torch.Tensor | None:
        """Make a factory's result as an unwritten tensor; None if it is small."""
        like = call.tensors[0] if call.tensors else None
        size = call.argument("size")
        count = math.prod(size) if size is not None else like.numel() if like is not None else 0
        layout = call.argument("layout") or (torch.strided if like is None else like.layout)
        if count * 16 < LARGE or layout is not torch.strided:
            return None
        spec = infer(call).shape
        if not isinstance(spec, TensorSpec) or spec.nbytes < LARGE:
            return None
        try:
            made = self._fresh(spec.nbytes, _view(spec), None)
        except MemoryError:  # torch's own error is better
            return None
        rule = self._rule_of(call.func)
        if rule.fill is not None:
            generator = call.argument("generator")
            kwargs = {} if generator is None else {"generator": generator}
            self.run(OperatorCall(rule.fill, (made, *rule.filling(call)), kwargs))
        return made

    def _defer(self, call: OperatorCall) -> torch.Tensor | None:
        """Defer an operator and return its result; None if it must run."""
        facts = facts_of(call.func)
        try:
            if facts.mutates == (0,) and len(call.func._schema.returns) == 1:
                return self._in_place(call)
            pure = not facts.mutates and not facts.random
            copies = self._rule_of(call.func).copies
            if pure and (torch.Tag.pointwise in call.func.tags or copies):
                return self._anew(call)
        except (_WrittenError, MemoryError, NotImplementedError):
            return None
        return None

    def _in_place(self, call: OperatorCall) -> torch.Tensor | None:
        target: torch.Tensor = call.args[0]
        kept = self.kept_of(target)
        if kept is None:
            return None
        whole = target.numel() * target.element_size() == target.untyped_storage().nbytes()
        if whole and target.is_contiguous() and self._rule_of(call.func).overwrites:
            kept.recipe = None
        seed = None
        if facts_of(call.func).random:
            if all(a.name != "generator" for a in call.func._schema.arguments):
                return None
            seed = _draw(call.argument("generator"))
        rest = OperatorCall(call.func, call.args[1:], call.kwargs)
        step = self._step(rest, _view(target), kept, seed)
        if step is None:
            return None
        kept.recipe = step
        return target

    def _anew(self, call: OperatorCall) -> torch.Tensor | None:
        spec = infer(call).shape
        if not isinstance(spec, TensorSpec) or spec.nbytes < LARGE:
            return None
        step = self._step(call, _view(spec), None, None)
        return None if step is None else self._fresh(spec.nbytes, step.view, step)

    def _step(
        self, call: OperatorCall, view: View, changed: LazyStorage | None, seed: int | None
    ) -> Recipe | None:
        """Build the next step of a recipe; None if that would be too long.

        Raises _WrittenError for a large argument that is written.
        """
        before = None if changed is None else changed.recipe
        sources: list[RecipeSource] = []

        def argument(tensor: torch.Tensor) -> Any:
            kept = self.kept_of(tensor)
            if kept is not None:
                nbytes = tensor.untyped_storage().nbytes()
                sources.append(RecipeSource(kept.recipe, nbytes, _view(tensor)))
                return sources[-1]
            if tensor.numel() * tensor.element_size() > TINY:
                raise _WrittenError
            with without_dispatch():
                return tensor.clone()

        args, kwargs = call.map(argument)
        used = [before, *(source.recipe for source in sources)]
        count = 1 + sum(recipe.count for recipe in used if recipe is not None)
        if count > LONGEST:
            return None
        return Recipe(
            before=before, view=view, func=call.func, in_place=changed is not None, args=args,
            kwargs=kwargs, seed=seed, count=count,
        )  # fmt: skip

    def _fresh(self, nbytes: int, view: View, recipe: Recipe | None) -> torch.Tensor:
        storage = untouched(nbytes)
        self._keep(storage, recipe)
        return view.of(storage)

    def _keep(self, storage: torch.UntypedStorage, recipe: Recipe | None) -> None:
        kept = LazyStorage(storage, self._forget)
        kept.key = storage._cdata
        kept.recipe = recipe
        self._kept[kept.key] = kept

    def _forget(self, kept: LazyStorage) -> None:
        self._kept.pop(kept.key, None)


def _view(tensor: torch.Tensor | TensorSpec) -> View:
    if isinstance(tensor, TensorSpec):
        return View(tensor.dtype, tensor.size, tensor.stride, tensor.offset)
    return View(tensor.dtype, tuple(tensor.size()), tensor.stride(), tensor.storage_offset())


def _draw(generator: torch.Generator | None) -> int:
    """Draw a seed from a generator; None is torch's default generator."""
    with without_dispatch():
        return int(torch.randint(1 << 62, (), generator=generator))
