"""Remedies for transformers' language models: their loss and attention."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from nbmem.estimates.remedies.base import Remedy, SavingsModel
from nbmem.estimates.stand_ins import with_stand_ins
from nbmem.virtual.patches.patcher import Patch, Patches

if TYPE_CHECKING:
    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.virtual.cards import Card

LIBRARY = "transformers.modeling_utils"
_ATTENTION = "transformers.integrations.sdpa_attention"
_SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings of models that change the scores behind their last layer."""


class _ModelChange(Remedy):
    """A change of a transformers model before it is moved or called."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[int] = set()
        self._lines = ""

    @classmethod
    def missing(cls) -> str | None:
        """Return a reason where the program has imported no model of transformers."""
        return None if LIBRARY in sys.modules else cls.not_applicable

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
            self.applied += self.why_not is None

    @classmethod
    def idle(cls, models: Iterable[Any], optimizers: Iterable[Any]) -> bool:
        """Return whether it would change no model."""
        return not any(cls.takes(inner) for model in models for _, inner in _models(model))

    def code_of(self, card: Card) -> str:
        """Return the lines that change the model."""
        return self._lines

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the lines after the model is made."""
        return edit.insert_after_model(self.code_of(card))


class LossInParts(_ModelChange):
    """A language model's loss, computed for a part of the positions at a time."""

    key = "loss_in_parts"
    title = "loss in parts"
    price = "computes the layer that scores words twice: 1 to 3% more time for large models"
    not_applicable = "It trains no causal language model of transformers."
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
    not_applicable = "No model of transformers in it has eager attention."
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


class _PastedLines(_ModelChange):
    """A change of a model by lines that are run as they are shown.

    Attributes:
        lines: The lines; `{model}` is the program's name for it, `{dtype}` the type of its weights.
    """

    lines: ClassVar[str]

    def change(self, model: Any, name: str, *, peft: bool) -> None:
        """Run the lines, with stand-ins for packages that are missing."""
        del peft
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        self._lines = self.lines.format(model=name, dtype=dtype)
        source, _ = with_stand_ins(self.lines.format(model="model", dtype=dtype))
        exec(source, {"model": model})  # noqa: S102 - nbmem's own lines, as they are shown


class Adapters(_PastedLines):
    """LoRA in place of training all weights of a transformers model."""

    key = "lora"
    title = "adapters (LoRA)"
    price = "trains fewer weights: compare it on a short run"
    not_applicable = "The program trains no complete language model of transformers."
    acts = SavingsModel(passing=0.2, waiting=0.2, state=0.98, stepping=0.98, gradients=0.98)
    lines = """\
from peft import LoraConfig, get_peft_model
adapters = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
{model} = get_peft_model({model}, adapters)"""

    @classmethod
    def takes(cls, model: Any) -> bool:
        """Return whether all of a model's weights are trained."""
        trained = all(weight.requires_grad for weight in model.parameters())
        return trained and model.get_output_embeddings() is not None

    def made_optimizer(self, optimizer: Any) -> None:
        """Refuse an optimizer that was made before the model is changed."""
        del optimizer
        if not self.applied:
            self.refuse("Its optimizer is made before the model is moved to the card.")

    def change(self, model: Any, name: str, *, peft: bool) -> None:
        """Add adapters if no optimizer has the weights yet."""
        if self.why_not is None:
            super().change(model, name, peft=peft)


class FourBit(_PastedLines):
    """Frozen weights in 4 bits, as QLoRA has them."""

    key = "four_bit"
    title = "frozen weights in 4 bits"
    price = "rounds the weights, and unpacks each at every use, which takes time"
    not_applicable = "No frozen linear layers are moved to the card in it."
    acts = SavingsModel(weights=0.7)
    lines = """\
import bitsandbytes as bnb
from torch import nn
from transformers.pytorch_utils import Conv1D
for name, layer in list({model}.named_modules()):  # as BitsAndBytesConfig(load_in_4bit=True) does
    frozen = isinstance(layer, (nn.Linear, Conv1D)) and not layer.weight.requires_grad
    if frozen and layer is not {model}.get_output_embeddings():
        turned = isinstance(layer, Conv1D)
        weight = layer.weight.data.T.contiguous() if turned else layer.weight.data
        four_bit = bnb.nn.Linear4bit(
            weight.shape[1], weight.shape[0], bias=layer.bias is not None,
            compute_dtype=weight.dtype, quant_type="nf4",
        )
        four_bit.weight.data, four_bit.bias = weight, layer.bias
        {model}.set_submodule(name, four_bit)"""

    @classmethod
    def takes(cls, model: Any) -> bool:
        """Return whether a model has frozen linear layers beside its last one."""
        import torch

        last = model.get_output_embeddings()
        return any(
            isinstance(layer, torch.nn.Linear) and not layer.weight.requires_grad
            for layer in model.modules()
            if layer is not last
        )

    def change(self, model: Any, name: str, *, peft: bool) -> None:
        """Pack the weights, which a move to the card does."""
        if next(model.parameters()).is_cuda:
            self.refuse(
                "Its model is made on the card: load it with quantization_config="
                "BitsAndBytesConfig(load_in_4bit=True)."
            )
        else:
            super().change(model, name, peft=peft)


class HalfAdapters(_PastedLines):
    """Adapters in the type of the model, and not in float32."""

    key = "half_adapters"
    title = "adapters in bfloat16"
    price = "small updates of an adapter may be lost in rounding"
    not_applicable = "It trains no float32 adapters on a bfloat16 model."
    acts = SavingsModel(passing=0.3, waiting=0.4, state=0.5, gradients=0.5)
    lines = """\
import torch
for weight in {model}.parameters():  # as get_peft_model(..., autocast_adapter_dtype=False)
    if weight.requires_grad:
        weight.data = weight.data.to(torch.bfloat16)"""

    @classmethod
    def takes(cls, model: Any) -> bool:
        """Return whether a bfloat16 model has float32 adapters."""
        import torch

        types = {(weight.dtype, weight.requires_grad) for weight in model.parameters()}
        return {(torch.float32, True), (torch.bfloat16, False)} <= types


class Float16(_PastedLines):
    """float16 on a card whose kernels of attention take no bfloat16."""

    key = "float16"
    title = "float16 in place of bfloat16"
    price = "none on a card without kernels for bfloat16; a training needs a GradScaler"
    not_applicable = "No bfloat16 model of transformers in it, or the card has kernels for it."
    acts = SavingsModel(passing=0.3, waiting=0.5)
    lines = """\
import torch
{model} = {model}.to(torch.float16)"""

    @classmethod
    def takes(cls, model: Any) -> bool:
        """Return whether a model is in bfloat16 on a card without kernels for it."""
        import torch

        old = torch.cuda.get_device_capability() < (8, 0)
        return old and any(weight.dtype == torch.bfloat16 for weight in model.parameters())


class OffloadedCache(_PastedLines):
    """A generation's keys and values on the host, but for one layer's."""

    key = "offloaded_cache"
    title = "KV cache on the host"
    price = "each token moves the cache of each layer: slower"
    not_applicable = "It calls `generate` of no model of transformers."
    acts = SavingsModel(passing=0.6, waiting=0.9)
    lines = '{model}.generation_config.cache_implementation = "offloaded"'

    @classmethod
    def idle(cls, models: Iterable[Any], optimizers: Iterable[Any]) -> bool:
        """Return whether the program trains, and has no cache."""
        return any(True for _ in optimizers)

    @classmethod
    def takes(cls, model: Any) -> bool:
        """Return whether a model would generate with the usual cache."""
        config = getattr(model, "generation_config", None)
        return config is not None and config.cache_implementation is None


class RepeatedHeads(_PastedLines):
    """Repeated keys and values, where no fused kernel shares them."""

    key = "repeated_heads"
    title = "fused attention for grouped heads"
    price = "none; faster"
    not_applicable = "The program has no model of transformers whose heads share keys and values."
    acts = SavingsModel(passing=0.3, waiting=0.6)
    lines = """\
from transformers.integrations import sdpa_attention
sdpa_attention.use_gqa_in_sdpa = lambda *tensors: False"""

    def __init__(self) -> None:
        super().__init__()
        self._patches = Patches()

    @classmethod
    def takes(cls, model: Any) -> bool:
        """Return whether torch's attention gets heads that share keys and values."""
        module = sys.modules.get(_ATTENTION)
        config = model.config.get_text_config()
        heads = getattr(config, "num_attention_heads", 0)
        shared = getattr(config, "num_key_value_heads", None) or heads
        fused = getattr(model.config, "_attn_implementation", None) == "sdpa"
        return fused and shared < heads and hasattr(module, "use_gqa_in_sdpa")

    def change(self, model: Any, name: str, *, peft: bool) -> None:
        """Run the lines, to be undone when the program has ended."""
        module = sys.modules[_ATTENTION]
        self._patches.apply([Patch(module, "use_gqa_in_sdpa", module.use_gqa_in_sdpa)])
        super().change(model, name, peft=peft)

    def finish(self) -> None:
        """Undo the lines, which change a module of transformers."""
        self._patches.undo()


def _models(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the outermost models of transformers in a module, by path."""
    library = sys.modules.get(LIBRARY)
    if library is None:
        return
    outer: list[str] = []
    for path, inner in module.named_modules():
        if isinstance(inner, library.PreTrainedModel) and not any(
            not one or path.startswith(f"{one}.") for one in outer
        ):
            outer.append(path)
            yield path, inner
