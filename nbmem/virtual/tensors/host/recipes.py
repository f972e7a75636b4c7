"""What would be in a tensor that nobody has read yet: the operators that have not run."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import _C

from nbmem.virtual.devices import CPU
from nbmem.virtual.tensors.host.pages import untouched

if TYPE_CHECKING:
    from collections.abc import Iterator


class View(NamedTuple):
    """Where in a storage a tensor lies."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The tensor on a storage."""
        with below():
            empty = torch.empty(0, dtype=self.dtype, device=CPU)
            return empty.set_(storage, self.offset, self.size, self.stride)


@dataclass(frozen=True, slots=True)
class RecipeSource:
    """An argument that is unwritten itself: its recipe as it was then, and where it lies."""

    recipe: Recipe | None
    nbytes: int
    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One operator that has not run, and those before it.

    Attributes:
        before: The steps that come first.
        view: What it writes.
        func: The operator.
        in_place: Whether what it writes is its first argument; else its result is copied there.
        args: The other arguments; unwritten ones are a Source.
        kwargs: Those with names.
        seed: Of its random numbers; None if it uses none.
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


def carry_out(recipe: Recipe | None, storage: torch.UntypedStorage) -> None:
    """Run the steps of a recipe, the first one first, on a storage that holds zeros."""
    steps: list[Recipe] = []
    while recipe is not None:
        steps.append(recipe)
        recipe = recipe.before
    with below():
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
    """An argument with tensors in the place of sources."""
    if isinstance(argument, RecipeSource):
        storage = untouched(argument.nbytes)
        carry_out(argument.recipe, storage)
        return argument.view.of(storage)
    if isinstance(argument, (list, tuple)):
        return type(argument)(_real(item) for item in argument)
    return argument


@contextlib.contextmanager
def below() -> Iterator[None]:
    """Operators inside run for real and leave no trace with autograd or the modes of torch."""
    with (
        _C._DisableTorchDispatch(),
        _C.DisableTorchFunction(),
        torch.no_grad(),
        _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(_C.DispatchKey.AutocastCPU)),
    ):
        yield
