"""Patch torch so that remedies' hooks run at the right moments."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nbmem.virtual.patches.patcher import Patch, Patches

if TYPE_CHECKING:
    from nbmem.estimates.remedies.base import Remedy


@contextlib.contextmanager
def watched(remedies: Sequence[Remedy]) -> Iterator[RemedyPatches]:
    """Call the remedies' hooks for a program's modules and optimizers.

    They are called while entered, at calls, moves, backwards and new optimizers.
    """
    watch = RemedyPatches(remedies)
    if not remedies:
        yield watch
        return
    watch.install()
    try:
        yield watch
    finally:
        watch.remove()


class RemedyPatches:
    """Patches of torch for one run; the process is the estimate's own.

    Attributes:
        backwards: How often backward ran.
    """

    def __init__(self, remedies: Sequence[Remedy]) -> None:
        self.remedies = tuple(remedies)
        self.backwards = 0
        self._depth = 0
        self._patches = Patches()

    def begin(self) -> None:
        """Prepare the remedies and hand them the existing optimizers.

        The program is about to start; earlier cells may have made optimizers.
        """
        if not self.remedies:
            return
        from torch.optim import Optimizer

        for remedy in self.remedies:
            remedy.prepare()
        for optimizer in [o for o in gc.get_objects() if issubclass(type(o), Optimizer)]:
            self._made(optimizer)

    def install(self) -> None:
        """Apply the patches."""
        import torch

        places = (
            (torch.nn.Module, "__call__", self._call),
            (torch.nn.Module, "cuda", self._move),
            (torch.nn.Module, "to", self._move),
            (torch.autograd, "backward", self._backward),
            (torch.optim.Optimizer, "__init__", self._init),
            (torch.optim.Optimizer, "zero_grad", self._zero_grad),
            (torch.nn.Module, "zero_grad", self._zero_grad),
        )
        self._patches.apply(
            [Patch(target, name, wrap(getattr(target, name))) for target, name, wrap in places]
        )

    def remove(self) -> None:
        """Finish the remedies and undo the patches."""
        for remedy in self.remedies:
            remedy.finish()
        self._patches.undo()

    def _call(self, true: Any) -> Any:
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return true(module, *args, **kwargs)
            for remedy in self.remedies:
                args, kwargs = remedy.outermost(module, args, kwargs)
            called = module
            for remedy in self.remedies:
                called = remedy.replacement(called)
            self._depth += 1
            try:
                return true(called, *args, **kwargs)
            finally:
                self._depth -= 1

        return call

    def _move(self, true: Any) -> Any:
        def move(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._depth and moves_to_card(true.__name__, args, kwargs):
                self._depth += 1  # What a remedy moves is not the program's.
                try:
                    for remedy in self.remedies:
                        remedy.moving(module)
                finally:
                    self._depth -= 1
            return true(module, *args, **kwargs)

        return move

    def _backward(self, true: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self.backwards += 1
            for remedy in self.remedies:
                remedy.before_backward()
            # What a checkpoint computes again in backward is no new pass of the model.
            self._depth += 1
            try:
                return true(*args, **kwargs)
            finally:
                self._depth -= 1

        return backward

    def _init(self, true: Any) -> Any:
        def init(optimizer: Any, params: Any, *args: Any, **kwargs: Any) -> None:
            for remedy in self.remedies:
                params = remedy.before_optimizer(params)
            true(optimizer, params, *args, **kwargs)
            self._made(optimizer)

        return init

    def _zero_grad(self, true: Any) -> Any:
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> None:
            if all(remedy.zeroing() for remedy in self.remedies):
                true(owner, *args, **kwargs)

        return zero_grad

    def _made(self, optimizer: Any) -> None:
        for remedy in self.remedies:
            remedy.made_optimizer(optimizer)


def moves_to_card(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether `module.cuda(...)` or `module.to(...)` moves to a card."""
    import torch

    if name == "cuda":
        return True
    place = kwargs.get("device", next(iter(args), None))
    if isinstance(place, int) and not isinstance(place, bool):
        return True
    if isinstance(place, (str, torch.device)):
        return bool(torch.device(place).type == "cuda")
    return isinstance(place, torch.Tensor) and bool(place.is_cuda)
