"""Write the program of an estimate: short, and to be pasted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.estimates.language_models.settings import OPTIMIZERS, Settings
from nbmem.estimates.stand_ins import is_installed, with_stand_ins

if TYPE_CHECKING:
    from nbmem.estimates.language_models.models import KnownModel

SEQ, BATCH = "seq", "batch"
"""Names of the program's variables."""
NEW = 2
"""Tokens that a generation writes: the cache has its whole length with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenProgram:
    """The program of an estimate.

    Attributes:
        source: What is shown, and runs on a card.
        run: What the estimate runs: the same, with stand-ins for packages that are missing.
        missing: Those packages.
    """

    source: str
    run: str
    missing: tuple[str, ...] = ()


def write_program(model: KnownModel, settings: Settings) -> WrittenProgram:
    """Return the program that does what the settings say with a model.

    Raises:
        UsageError: transformers is not installed, or what has no stand-in is missing.
    """
    if not is_installed("transformers"):
        raise UsageError(
            "A language model is built by transformers, which is not installed: pip install "
            "transformers."
        )
    if settings.optimizer == "adamw8bit" and settings.trains and not is_installed("bitsandbytes"):
        raise UsageError(
            "The optimizer adamw8bit is of bitsandbytes, which is not installed: pip install "
            "bitsandbytes."
        )
    parts = [_head(settings), _sizes(settings), _model(model, settings)]
    if settings.quantized:
        parts.append(_FOUR_BIT.format(dtype=settings.dtype))
    parts.append("model = model.cuda()" + ("" if settings.trains else ".eval()"))
    parts += [_training(settings)] if settings.trains else [_GENERATION.format(new=NEW)]
    source = "\n".join(parts)
    run, missing = with_stand_ins(source)
    return WrittenProgram(source=source, run=run, missing=missing)


def _head(settings: Settings) -> str:
    lines = ["import torch"]
    if settings.quantized or (settings.optimizer == "adamw8bit" and settings.trains):
        lines.append("import bitsandbytes as bnb")
    if settings.adapts:
        more = ", prepare_model_for_kbit_training" if settings.quantized else ""
        lines.append(f"from peft import LoraConfig, get_peft_model{more}")
    lines.append("from transformers import AutoConfig, AutoModelForCausalLM")
    if settings.quantized:
        lines.append("from transformers.pytorch_utils import Conv1D")
    return "\n".join(lines)


def _sizes(settings: Settings) -> str:
    return f"\n{SEQ} = {settings.seq}\n{BATCH} = {settings.batch}\n"


def _model(model: KnownModel, settings: Settings) -> str:
    weights = (
        f'# With trained weights: AutoModelForCausalLM.from_pretrained("{model.repo}", '
        f"dtype=torch.{settings.dtype})\n"
        if model.repo
        else ""
    )
    return (
        f"config = {model.code}\n{weights}"
        f"model = AutoModelForCausalLM.from_config(config, dtype=torch.{settings.dtype})"
    )


_FOUR_BIT = """\
for name, layer in list(model.named_modules()):  # as BitsAndBytesConfig(load_in_4bit=True) does
    if isinstance(layer, (torch.nn.Linear, Conv1D)) and layer is not model.get_output_embeddings():
        rows, columns = layer.weight.shape[:: 1 if isinstance(layer, torch.nn.Linear) else -1]
        has_bias, dtype = layer.bias is not None, torch.{dtype}
        four_bit = bnb.nn.Linear4bit(
            columns, rows, bias=has_bias, compute_dtype=dtype, quant_type="nf4"
        )
        model.set_submodule(name, four_bit.to(dtype))
model.is_loaded_in_4bit = True"""

_GENERATION = """\
prompt = torch.randint(config.vocab_size, (batch, seq - {new}), device="cuda")
with torch.inference_mode():
    result = model(input_ids=prompt, use_cache=True, logits_to_keep=1)
    for _ in range({new}):
        words = result.logits.argmax(-1)
        cache = result.past_key_values
        result = model(input_ids=words, past_key_values=cache, use_cache=True, logits_to_keep=1)"""


def _training(settings: Settings) -> str:
    lines = ["model.config.use_cache = False"]
    checkpointing = "model.gradient_checkpointing_enable()"
    if settings.adapts and settings.quantized:
        option = "" if settings.checkpointing else ", use_gradient_checkpointing=False"
        lines.append(f"model = prepare_model_for_kbit_training(model{option})")
    elif settings.checkpointing:
        lines.append(checkpointing)
        if settings.adapts:
            lines.append("model.enable_input_require_grads()")
    if settings.adapts:
        targets = repr(settings.targets[0] if len(settings.targets) == 1 else settings.targets)
        targets = targets if targets == "'all-linear'" else repr(list(settings.targets))
        lines.append(
            f"adapters = LoraConfig(r={settings.rank}, lora_alpha={2 * settings.rank}, "
            f'target_modules={targets}, task_type="CAUSAL_LM")'
        )
        lines.append("model = get_peft_model(model, adapters)")
    made = OPTIMIZERS[settings.optimizer].format("trained")
    lines += [
        "model.train()",
        "trained = [p for p in model.parameters() if p.requires_grad]",
        f"optimizer = {made}",
        "for step in range(2):",
        '    words = torch.randint(config.vocab_size, (batch, seq), device="cuda")',
    ]
    forward = "loss = model(input_ids=words, labels=words).loss"
    if settings.autocast:
        dtype = "float16" if settings.dtype == "float16" else "bfloat16"
        lines += [f'    with torch.autocast("cuda", torch.{dtype}):', f"        {forward}"]
    else:
        lines.append(f"    {forward}")
    lines += ["    loss.backward()", "    optimizer.step()", "    optimizer.zero_grad()"]
    return "\n".join(lines)
