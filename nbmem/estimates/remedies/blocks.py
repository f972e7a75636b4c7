"""Checkpoints of a model's repeated blocks: they are found by the model's structure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.estimates.remedies.base import Acts, Remedy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nbmem.estimates.edits import Edit
    from nbmem.virtual.cards import Card


class Checkpoint(Remedy):
    """Blocks keep their input only."""

    key = "checkpoint"
    title = "checkpointing"
    price = "runs the blocks' forward again in backward: about a third more arithmetic"
    nothing = "No module trains in it."
    acts = Acts(passing=0.0, waiting=0.7, inputs=0.0)
    idly = "The model has no repeated blocks in a ModuleList or Sequential."

    def __init__(self) -> None:
        super().__init__()
        self._code = ""
        self._done: set[int] = set()

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Wrap the blocks of a model that is seen for the first time."""
        import torch

        if id(module) not in self._done and module.training and torch.is_grad_enabled():
            self._done.add(id(module))
            self._wrap(module)
        return args, kwargs

    def _wrap(self, model: Any) -> None:
        model = getattr(model, "_orig_mod", model)  # torch.compile(model) is one around it
        if getattr(model, "is_gradient_checkpointing", False):
            self.refuse("The model checkpoints its blocks already.")
            return
        own = getattr(model, "gradient_checkpointing_enable", None)
        if own is not None and getattr(model, "supports_gradient_checkpointing", True):
            own(gradient_checkpointing_kwargs={"use_reentrant": False})
            self._code = (
                f"{self.own.model}.gradient_checkpointing_enable(\n"
                '    gradient_checkpointing_kwargs={"use_reentrant": False})'
            )
            self.applied += 1
            return
        blocks = repeated_blocks(model)
        if not blocks:
            self.refuse(self.idly)
            return
        self._code = (
            "from functools import partial\n"
            "from torch.utils.checkpoint import checkpoint\n"
            f"for block in {written(self.own.model, model, blocks)}:\n"
            "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)"
        )
        for block in blocks:
            block.forward = _checkpointed(block)
            self.applied += 1

    @classmethod
    def idle(cls, models: Iterable[Any], optimizers: Iterable[Any]) -> bool:
        """Whether no model has blocks, nor a way of its own."""
        del optimizers
        return not any(
            hasattr(model, "gradient_checkpointing_enable") or repeated_blocks(model)
            for model in models
        )

    def code_of(self, card: Card) -> str:
        """Lines that do to the model's blocks what was done here."""
        del card
        return self._code

    def put(self, edit: Edit, card: Card) -> bool:
        """Where the model has been made."""
        return edit.after_the_model(self.code_of(card))


def written(called: str, model: Any, blocks: Sequence[Any]) -> str:
    """Blocks of a model as an expression: `model.blocks`, `(*model.layer1, *model.layer2)`."""
    wanted = {id(block) for block in blocks}
    found: list[str] = []
    for name, holder in model.named_modules():
        children = [(place, child) for place, child in holder.named_children()]
        inside = [place for place, child in children if id(child) in wanted]
        path = called + "".join(_step(part) for part in name.split(".") if part)
        if inside and len(inside) == len(children):
            found.append(f"*{path}")
        else:
            found += [path + _step(place) for place in inside]
    if len(found) == 1:
        return found[0].removeprefix("*")
    return f"({', '.join(found)})"


def _step(part: str) -> str:
    return f"[{part}]" if part.isdecimal() else f".{part}"


def repeated_blocks(model: Any) -> list[Any]:
    """Children of lists and sequences that are of one class, have layers inside, and weights."""
    from torch import nn

    found: list[Any] = []
    for child in model.children():
        within = repeated_blocks(child) if not isinstance(child, _lists()) else None
        if within is not None:
            found += within
            continue
        found += _blocks_of(child)
    return found if not isinstance(model, (nn.Sequential, nn.ModuleList)) else _blocks_of(model)


def _blocks_of(container: Any) -> list[Any]:
    kinds = [type(child) for child in container.children()]
    found: list[Any] = []
    for child in container.children():
        inside = next(child.children(), None) is not None
        if inside and kinds.count(type(child)) > 1 and next(child.parameters(), None) is not None:
            found.append(child)
        else:
            found += repeated_blocks(child)
    return found


def _lists() -> tuple[type, ...]:
    from torch import nn

    return (nn.Sequential, nn.ModuleList)


def _checkpointed(block: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    forward = block.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return again
