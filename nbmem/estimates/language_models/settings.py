"""Describe what is done with a language model: the method and its options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError
from nbmem.core.suggestions import suggest

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card

FULL, LORA, QLORA, GENERATE = "full", "lora", "qlora", "generate"
METHODS = {
    FULL: "all weights are trained",
    LORA: "adapters are trained, by peft",
    QLORA: "the same on weights of 4 bits (NF4), by bitsandbytes",
    GENERATE: "a prompt is read and two tokens are written, with a cache",
}
SAME_METHODS = {"inference": GENERATE, "full-finetuning": FULL, "finetune": FULL}
"""Other words for a method."""
USUAL_SEQ = 2048
"""Tokens of a sequence if none are named; fewer where a model has fewer positions."""
AUTO = "auto"
DTYPES = (AUTO, "bfloat16", "float16", "float32")
"""Types of weights; auto is bfloat16, and float16 on a card that has no kernels for that."""
SAME_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}
OPTIMIZERS = {
    "adamw": "torch.optim.AdamW({}, lr=2e-4, fused=True)",
    "adamw8bit": "bnb.optim.AdamW8bit({}, lr=2e-4)",
    "adafactor": "torch.optim.Adafactor({}, lr=2e-4)",
    "sgd": "torch.optim.SGD({}, lr=2e-4)",
}
"""Optimizers, and how one is made; fused is what transformers' Trainer takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The model, the method and its options.

    Attributes:
        model: The model, as it was asked for.
        method: One of METHODS.
        seq: Tokens of a sequence; for generation, of the prompt and the answer together.
        batch: Sequences at a time.
        dtype: Type of the weights that are not quantized; AUTO for what people take on a card.
        optimizer: One of OPTIMIZERS.
        checkpointing: Whether activations are computed again in backward.
        autocast: Whether a step runs under autocast, as Trainer does with bf16=True.
        rank: Rank of the adapters.
        targets: What is adapted: `all-linear`, or names of layers.
        bits: Bits of a weight of the base model: 16 for `dtype`, or 4.
        seq_named: Whether the length was asked for.
    """

    model: str
    method: str = LORA
    seq: int = USUAL_SEQ
    batch: int = 1
    dtype: str = AUTO
    optimizer: str = "adamw"
    checkpointing: bool = True
    autocast: bool = True
    rank: int = 16
    targets: tuple[str, ...] = ("all-linear",)
    bits: int = 16
    seq_named: bool = False

    @property
    def trains(self) -> bool:
        """True for a method that trains."""
        return self.method != GENERATE

    @property
    def adapts(self) -> bool:
        """True for a method that adds adapters."""
        return self.method in {LORA, QLORA}

    @property
    def quantized(self) -> bool:
        """True if the base model's weights have 4 bits."""
        return self.method == QLORA or self.bits == 4

    @property
    def words(self) -> str:
        """The method, in a few words: `QLoRA`."""
        if self.method == GENERATE:
            return "generation in 4 bits" if self.quantized else "generation"
        return {FULL: "full fine-tuning", LORA: "LoRA", QLORA: "QLoRA"}[self.method]


def settings_of(model: str, **given: Any) -> Settings:
    """Return checked settings; a value of None stands for the default.

    Raises:
        UsageError: A value is not one of those that there are.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    method = str(chosen.get("method", LORA)).lower()
    chosen["method"] = _one_of("method", SAME_METHODS.get(method, method), METHODS)
    dtype = str(chosen.get("dtype", AUTO)).lower()
    chosen["dtype"] = _one_of("dtype", SAME_DTYPES.get(dtype, dtype), DTYPES)
    optimizer = str(chosen.get("optimizer", "adamw")).lower().replace("_", "").replace("-", "")
    chosen["optimizer"] = _one_of("optimizer", optimizer, OPTIMIZERS)
    found = Settings(model=model, seq_named="seq" in chosen, **chosen)
    for name, least in (("seq", 3 if found.method == GENERATE else 1), ("batch", 1), ("rank", 1)):
        if getattr(found, name) < least:
            raise UsageError(f"--{name} {getattr(found, name)} is too small: at least {least}.")
    if found.bits not in {4, 16}:
        raise UsageError(f"--bits {found.bits} is not known. Write 4, or leave it out.")
    if found.method == FULL and found.bits == 4:
        raise UsageError(
            "Weights of 4 bits cannot be trained. Adapters on them can: --method qlora."
        )
    return found


def check_length(settings: Settings, positions: int | None) -> Settings:
    """Return settings whose sequences a model has positions for.

    Args:
        settings: The settings; a length that was not asked for may be cut.
        positions: Positions of the model; None without a bound.

    Raises:
        UsageError: A length was asked for that is too large.
    """
    if positions is None or settings.seq <= positions:
        return settings
    if settings.seq_named:
        raise UsageError(
            f"{settings.model} has positions for {positions:,} tokens, and --seq is "
            f"{settings.seq:,}. Ask for --seq {positions} or less."
        )
    return replace(settings, seq=positions)


def for_card(settings: Settings, card: Card) -> Settings:
    """Return settings with the type of weights that a card has kernels for."""
    if settings.dtype != AUTO:
        return settings
    return replace(settings, dtype="bfloat16" if card.arch.bfloat16 else "float16")


def _one_of(what: str, value: str, known: Iterable[str]) -> str:
    known = list(known)
    if value in known:
        return value
    meant = suggest(value, known)
    raise UsageError(f"--{what} {value} is not known. {meant}There are {', '.join(known)}.")
