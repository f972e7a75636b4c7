"""Remedies for transformers' language models: their loss and attention."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbmem.estimates.remedies.base import Remedy, SavingsModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.virtual.cards import Card

_SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings of models that change the scores behind their last layer."""


class _ModelChange(Remedy):
    """A change of a transformers model before it is moved or called."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[int] = set()
        self._lines = ""

    @classmethod
    def takes(cls, model: Any) -> bool:
        """Return whether it would change a model of transformers."""
        raise NotImplementedError

    def change(self, model: Any, name: str, *, peft: bool) -> None:
        """Change a model and note the lines that do it.

        Args:
            model: The model of transformers, or peft's wrapper of it.
            name: The program's name for it.
            peft: Whether it is that wrapper.
        """
        raise NotImplementedError

    def moving(self, module: Any) -> None:
        """Change the model before libraries wrap its forward."""
        self._apply(module)

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Change a model that was made on the card, at its first call."""
        self._apply(module)
        return args, kwargs

    def _apply(self, module: Any) -> None:
        if id(module) in self._seen:
            return
        self._seen.update(id(inner) for inner in module.modules())
        for path, model in _models(module):
            if not self.takes(model):
                continue
            if "forward" in vars(model):
                self.refuse("A library has wrapped the model's forward already.")
                continue
            peft = hasattr(module, "get_base_model")
            name = self.own.model if peft or not path else f"{self.own.model}.{path}"
            self.change(module if peft else model, name, peft=peft)
            self.applied += 1

    @classmethod
    def idle(cls, models: Iterable[Any], optimizers: Iterable[Any]) -> bool:
        """Return whether it would change no model."""
        del optimizers
        return not any(cls.takes(inner) for model in models for _, inner in _models(model))

    def code_of(self, card: Card) -> str:
        """Return the lines that change the model."""
        del card
        return self._lines

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the lines after the model is made."""
        return edit.insert_after_model(self.code_of(card))


class LossInParts(_ModelChange):
    """A language model's loss, computed for a part of the positions at a time."""

    key = "loss_in_parts"
    title = "loss in parts"
    price = "computes the layer that scores words twice: 1 to 3% more time for large models"
    nothing = "It trains no causal language model of transformers."
    acts = SavingsModel(passing=0.5, waiting=0.2)

    @classmethod
    def takes(cls, model: Any) -> bool:
        """Return whether a model's loss is that of its last layer's scores."""
        code = getattr(
            getattr(type(model).forward, "__wrapped__", type(model).forward), "__code__", None
        )
        keeps = code is not None and "logits_to_keep" in code.co_varnames
        scaled = any(getattr(model.config, name, None) not in {None, 1} for name in _SCALES)
        return keeps and not scaled and model.get_output_embeddings() is not None

    def change(self, model: Any, name: str, *, peft: bool) -> None:
        """Run the very lines that are to be pasted."""
        from nbmem.report.analysis.library_calls import loss_in_parts_of  # imports numpy

        self._lines = loss_in_parts_of(name, peft=peft)
        lines = loss_in_parts_of("model", peft=peft)
        exec(lines, {"model": model})  # noqa: S102 - nbmem's own lines, as they are shown


class FusedAttention(_ModelChange):
    """torch's fused attention in place of a transformers model's eager one."""

    key = "fused_attention"
    title = "fused attention"
    price = "none; faster, but it returns no attention weights"
    nothing = "No model of transformers in it has eager attention."
    acts = SavingsModel(passing=0.3, waiting=0.6)

    @classmethod
    def takes(cls, model: Any) -> bool:
        """Return whether a model's attention is eager, and could be fused."""
        eager = getattr(model.config, "_attn_implementation", None) == "eager"
        return eager and bool(getattr(type(model), "_supports_sdpa", False))

    def change(self, model: Any, name: str, *, peft: bool) -> None:
        """Set the attention by the model's own method."""
        whole = model.get_base_model() if peft else model
        whole.set_attn_implementation("sdpa")
        self._lines = f'{name}.set_attn_implementation("sdpa")'


def _models(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the outermost models of transformers in a module, by path."""
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:
        return
    outer: list[str] = []
    for path, inner in module.named_modules():
        if isinstance(inner, library.PreTrainedModel) and not any(
            not one or path.startswith(f"{one}.") for one in outer
        ):
            outer.append(path)
            yield path, inner
