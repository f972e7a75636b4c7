"""Recipes of unwritten tensors: their operators that have not run yet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import _C

from nbmem.virtual.devices import CPU
from nbmem.virtual.tensors.host.pages import untouched


class View(NamedTuple):
    """A tensor's type, size, strides and offset in a storage."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return the tensor on a storage."""
        with without_dispatch():
            empty = torch.empty(0, dtype=self.dtype, device=CPU)
            return empty.set_(storage, self.offset, self.size, self.stride)


@dataclass(frozen=True, slots=True)
class RecipeSource:
    """An unwritten argument: its recipe at that time, and its view."""

    recipe: Recipe | None
    nbytes: int
    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An operator that has not run, linked to the step before it.

    Attributes:
        before: The step before it; None for the first one.
        view: The tensor that it writes.
        func: The operator.
        in_place: Whether the written tensor is its first argument; else its result is copied there.
        args: The other arguments; unwritten ones are a RecipeSource.
        kwargs: Keyword arguments.
        seed: The seed of its random numbers; None if it uses none.
        count: Steps up to here, with those of the arguments.
    """

    before: Recipe | None
    view: View
    func: Any
    in_place: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    seed: int | None
    count: int


def run_recipe(recipe: Recipe | None, storage: torch.UntypedStorage) -> None:
    """Run a recipe's steps in order, on a storage that holds zeros."""
    steps: list[Recipe] = []
    while recipe is not None:
        steps.append(recipe)
        recipe = recipe.before
    with without_dispatch():
        for step in reversed(steps):
            target = step.view.of(storage)
            args = tuple(_real(arg) for arg in step.args)
            kwargs = {name: _real(arg) for name, arg in step.kwargs.items()}
            if step.seed is not None:
                kwargs["generator"] = torch.Generator("cpu").manual_seed(step.seed)
            if step.in_place:
                step.func(target, *args, **kwargs)
            else:
                target.copy_(step.func(*args, **kwargs))


def _real(argument: Any) -> Any:
    """Return an argument with tensors in place of recipe sources."""
    if isinstance(argument, RecipeSource):
        storage = untouched(argument.nbytes)
        run_recipe(argument.recipe, storage)
        return argument.view.of(storage)
    if isinstance(argument, (list, tuple)):
        return type(argument)(_real(item) for item in argument)
    return argument


@contextlib.contextmanager
def without_dispatch() -> Iterator[None]:
    """Run operators inside for real, below autograd and torch's modes.

    They leave no trace with either.
    """
    with (
        _C._DisableTorchDispatch(),
        _C.DisableTorchFunction(),
        torch.no_grad(),
        _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(_C.DispatchKey.AutocastCPU)),
    ):
        yield
