"""Checkpointing of a model's repeated blocks, whole or selective.

The blocks are found by the model's structure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nbmem.estimates.remedies.base import Remedy, SavingsModel

if TYPE_CHECKING:
    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.virtual.cards import Card


_KEPT = {
    "matrix product": ("mm", "addmm", "bmm", "baddbmm"),
    "convolution": ("convolution",),
    "attention": (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    ),
}
"""Operators of ATen that a card computes them with; which attention is taken depends on the card.
"""
_NO_WORK = "_unsafe_view"
"""An operator that makes a view, although its schema does not mark a view."""
_NAMED = 3
"""Number of operators computed again that the price names."""


class Checkpoint(Remedy):
    """Checkpointing of blocks that keep only their input."""

    key = "checkpoint"
    title = "checkpointing"
    price = "runs the blocks' forward again in backward: about a third more arithmetic"
    group = "checkpoint"
    milder = "checkpoint_selective"
    not_applicable = "No module trains in it."
    acts = SavingsModel(passing=0.0, waiting=0.7, inputs=0.0)
    idle_reason = "The model has no repeated blocks in a ModuleList or Sequential."

    def __init__(self) -> None:
        super().__init__()
        self._lines = ""
        self._imports: tuple[str, ...] = ()
        self._done: set[int] = set()

    def also(self) -> dict[str, Any]:
        """Return further keywords of `checkpoint`, beside `use_reentrant`.

        The lines of code use the keywords' own names as values.
        """
        return {}

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Wrap the blocks of a model at its first training call."""
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
        also = self.also()
        own = getattr(model, "gradient_checkpointing_enable", None)
        if own is not None and getattr(model, "supports_gradient_checkpointing", True):
            own(gradient_checkpointing_kwargs={"use_reentrant": False, **also})
            more = "".join(f', "{name}": {name}' for name in also)
            self._lines = (
                f"{self.own.model}.gradient_checkpointing_enable(\n"
                f'    gradient_checkpointing_kwargs={{"use_reentrant": False{more}}})'
            )
            self.applied += 1
            return
        blocks = repeated_blocks(model)
        if not blocks:
            self.refuse(self.idle_reason)
            return
        more = "".join(f", {name}={name}" for name in also)
        self._imports = ("partial", "checkpoint")
        self._lines = (
            f"for block in {written(self.own.model, model, blocks)}:\n"
            f"    block.forward = partial(checkpoint, block.forward, use_reentrant=False{more})"
        )
        for block in blocks:
            block.forward = _checkpointed(block, also)
            self.applied += 1

    @classmethod
    def idle(cls, models: Iterable[Any], optimizers: Iterable[Any]) -> bool:
        """Return whether no model has blocks or its own checkpointing."""
        return not any(
            hasattr(model, "gradient_checkpointing_enable") or repeated_blocks(model)
            for model in models
        )

    def code_of(self, card: Card) -> str:
        """Return the lines that checkpoint the model's blocks."""
        return _with_imports(self._imports, self._lines)

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the lines after the model is made."""
        return edit.insert_after_model(self.code_of(card))


class SelectiveCheckpoint(Checkpoint):
    """Checkpointing that keeps the results of the slowest operators."""

    key = "checkpoint_selective"
    title = "selective checkpointing"
    price = (
        "runs the blocks' forward again in backward without matrix products, convolutions and "
        "attention: little arithmetic"
    )
    milder = ""
    not_applicable = "Its blocks have no matrix product, convolution or attention to keep."
    # It saved 19 to 44% of the activations at the peak in a ResNet-50, two ViTs and a Llama.
    acts = SavingsModel(passing=0.0, waiting=0.3, inputs=0.0)

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, None] = {}
        self._again: Counter[str] = Counter()

    def also(self) -> dict[str, Any]:
        """Return contexts of a policy that keeps and notes operators."""
        from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

        kinds = _kinds()

        def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            del args, kwargs
            kind = kinds.get(operator)
            if not context.is_recompute:
                self._note(operator, kind)
            # As torch's own policy for a list of operators.
            saved = kind is not None
            return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

        return {"context_fn": partial(create_selective_checkpoint_contexts, policy)}

    def _note(self, operator: Any, kind: str | None) -> None:
        if kind is not None:
            self._found[kind] = None
        elif not operator.is_view and (name := operator.overloadpacket.__name__) != _NO_WORK:
            self._again[name.strip("_")] += 1

    @property
    def unapplied(self) -> str | None:
        """The reason why it did nothing.

        Without an operator to save it would be plain checkpointing.
        """
        return super().unapplied or (None if self._found else SelectiveCheckpoint.not_applicable)

    def price_of(self, card: Card, steps: int) -> str:
        """Return the most frequent operators that are computed again."""
        if not self._found:
            return self.price
        common = [name for name, _ in self._again.most_common(_NAMED)]
        others = len(self._again) - len(common)
        more = f" and {others} other operators" if others else ""
        return (
            f"computes {', '.join(common)}{more} of the blocks again in backward, "
            f"no {' and no '.join(self._found)}: little arithmetic"
        )

    def code_of(self, card: Card) -> str:
        """Return the lines with the list of operators to keep."""
        kept = "".join(
            f"    torch.ops.aten.{name}.default,\n" for kind in self._found for name in _KEPT[kind]
        )
        context = f"context_fn = partial(create_selective_checkpoint_contexts, [\n{kept}])"
        names = ("partial", *self._imports, "create_selective_checkpoint_contexts")
        return _with_imports(tuple(dict.fromkeys(names)), f"{context}\n{self._lines}")


def _with_imports(names: Sequence[str], lines: str) -> str:
    """Return lines of code below the imports that they need."""
    found = ["from functools import partial"] if "partial" in names else []
    of_torch = [name for name in names if name != "partial"]
    if of_torch:
        found.append(f"from torch.utils.checkpoint import {', '.join(of_torch)}")
    return "\n".join([*found, lines])


def written(called: str, model: Any, blocks: Sequence[Any]) -> str:
    """Format blocks of a model as an expression.

    Examples are `model.blocks` and `(*model.layer1, *model.layer2)`.
    """
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
    """Find a model's repeated blocks in its containers.

    They are children of one class, with layers inside and weights.
    """
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


def _checkpointed(block: Any, also: Mapping[str, Any]) -> Any:
    from torch.utils.checkpoint import checkpoint

    forward = block.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **also, **kwargs)

    return again


def _kinds() -> dict[Any, str]:
    """Map each operator that is kept to its kind."""
    import torch

    return {
        getattr(torch.ops.aten, name).default: kind
        for kind, names in _KEPT.items()
        for name in names
    }
