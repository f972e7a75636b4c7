"""Compiled training programs of many kinds and modes.

A workload is a function that creates a model on the card and returns a function for one step.
Models are shallow, because compiling takes longer for deep ones. Batches are large, so that tensors
make the peak.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from tests.oracle.nets import LENGTH, WORDS, ConvNeXt, Inverted, ViT, Words, resnet
from tests.oracle.nets_diffusion_recommendation import DLRM, Cross, DiT, Towers, UNet


def training_step(
    model: nn.Module,
    loss: Callable[[nn.Module], torch.Tensor],
    *,
    amp: bool = False,
    optimizer: Any = None,
    **options: Any,
) -> Callable[[], Any]:
    """Return a step of AdamW on a compiled model."""
    model = model.cuda().train()
    chosen = optimizer or torch.optim.AdamW(model.parameters(), 1e-4)
    compiled: Any = torch.compile(model, **options)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=amp):
            value = loss(compiled)
        value.backward()
        chosen.step()
        chosen.zero_grad()

    return step


def classification_loss(
    shape: tuple[int, ...], classes: int = 10
) -> Callable[[nn.Module], torch.Tensor]:
    """Return the loss of a classifier of images."""
    x = torch.randn(shape, device="cuda")
    y = torch.zeros(shape[0], dtype=torch.long, device="cuda") % classes
    return lambda model: cross_entropy(model(x), y)


def token_ids(rows: int, length: int = LENGTH) -> torch.Tensor:
    return torch.zeros(rows, length, dtype=torch.long, device="cuda")


def transformers_model(name: str, **options: Any) -> nn.Module:
    """Create a small model of transformers."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**options)
    kinds = "LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration"
    kind = next(k for k in kinds if hasattr(transformers, name + k))
    model: nn.Module = getattr(transformers, name + kind)(config)
    return model


def decoder(name: str, **options: Any) -> nn.Module:
    """Create a small decoder of transformers with grouped queries, as Llama."""
    sizes: dict[str, Any] = {
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": WORDS,
    }
    return transformers_model(name, **sizes | options)


def language_loss(rows: int, length: int = LENGTH) -> Callable[[nn.Module], torch.Tensor]:
    words = token_ids(rows, length)
    return lambda model: model(input_ids=words, labels=words).loss


def unet(**options: Any) -> Callable[[], Any]:
    x, when = torch.randn(16, 3, 64, 64, device="cuda"), torch.zeros(16, device="cuda")
    return training_step(UNet(), lambda m: mse_loss(m(x, when), x), **options)


def dit() -> Callable[[], Any]:
    x, when = torch.randn(32, 4, 32, 32, device="cuda"), torch.zeros(32, device="cuda")
    kind = torch.zeros(32, dtype=torch.long, device="cuda")
    return training_step(DiT(), lambda m: m(x, when, kind).square().mean(), amp=True)


def dlrm() -> Callable[[], Any]:
    dense = torch.randn(8192, 13, device="cuda")
    bags = torch.zeros(8192, 8, 10, dtype=torch.long, device="cuda")
    return training_step(DLRM(), lambda m: m(dense, bags).square().mean())


def dynamic_lengths() -> Callable[[], Any]:
    """Change the length in each step; the second compiles for any length."""
    lengths = iter((512, 384, 448, 320, 416, 352))
    return training_step(
        transformers_model("GPT2", n_layer=2, n_embd=512, n_head=8, vocab_size=WORDS),
        lambda m: language_loss(8, next(lengths))(m),  # noqa: PLW0108 - another length each time
    )


def compiled_optimizer() -> Callable[[], Any]:
    model = Words().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    words = token_ids(8)
    compiled, update = torch.compile(model), torch.compile(optimizer.step)

    def step() -> None:
        compiled(words).backward()
        update()
        optimizer.zero_grad()

    return step


def inference() -> Callable[[], Any]:
    """Return a forward pass without gradients."""
    model, words = torch.compile(Words().cuda().eval()), token_ids(16)

    def step() -> None:
        with torch.no_grad():
            model(words)

    return step


def flex_attention_block() -> Callable[[], Any]:
    """Train a compiled block of flex_attention with a mask and a score_mod."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 1024, 1024, device="cuda")
    qkv, out = nn.Linear(512, 1536), nn.Linear(512, 512)

    class Flexible(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = qkv, out
            self.slope = nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, n, c = x.shape
            q, k, v = self.qkv(x).view(b, n, 3, 8, c // 8).permute(2, 0, 3, 1, 4)
            slope = self.slope
            y = flex_attention(q, k, v, lambda s, b, h, i, j: s + slope[h] * (i - j), mask)
            return self.out(y.transpose(1, 2).reshape(b, n, c))

    x = torch.randn(8, 1024, 512, device="cuda")
    return training_step(Flexible(), lambda m: m(x).square().mean(), amp=True)


def simple_head(size: int = 64) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size, 10)]


def language_model_step(model: nn.Module, rows: int = 8, **options: Any) -> Callable[[], Any]:
    """Return a training step of a language model."""
    words = token_ids(rows)
    return training_step(model, lambda m: m(words), **options)


def cross() -> Callable[[], Any]:
    fields = torch.zeros(16384, 16, dtype=torch.long, device="cuda")
    return training_step(Cross(), lambda m: m(fields).sigmoid().mean())


def towers() -> Callable[[], Any]:
    x = torch.zeros(8192, dtype=torch.long, device="cuda")
    return training_step(Towers(), lambda m: m(x, x))


WORKLOADS: dict[str, Callable[[], Callable[[], Any]]] = {
    "resnet": lambda: training_step(resnet(), classification_loss((32, 3, 224, 224))),
    "resnext, AMP": lambda: training_step(
        resnet(8), classification_loss((32, 3, 224, 224)), amp=True
    ),
    "mobilenet": lambda: training_step(
        nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1),
            Inverted(32),
            nn.Conv2d(32, 64, 3, 2, 1),
            Inverted(64),
            *simple_head(),
        ),
        classification_loss((32, 3, 128, 128)),
    ),
    "convnext": lambda: training_step(
        nn.Sequential(nn.Conv2d(3, 64, 4, 4), ConvNeXt(64), ConvNeXt(64), *simple_head()),
        classification_loss((64, 3, 224, 224)),
    ),
    "vit": lambda: training_step(ViT(), classification_loss((64, 3, 224, 224))),
    "vit, AMP": lambda: training_step(ViT(), classification_loss((64, 3, 224, 224)), amp=True),
    "resnet, reduce-overhead": lambda: training_step(
        resnet(), classification_loss((32, 3, 128, 128)), mode="reduce-overhead"
    ),
    "words": lambda: language_model_step(Words()),
    "words, AMP": lambda: language_model_step(Words(), amp=True),
    "words, checkpoints": lambda: language_model_step(Words(saves=True), 16),
    "words, breaks": lambda: language_model_step(Words(breaks=True)),
    "words, reduce-overhead": lambda: language_model_step(Words(), mode="reduce-overhead"),
    "words, compiled optimizer": compiled_optimizer,
    "words, inference": inference,
    "gpt2, dynamic": dynamic_lengths,
    "llama": lambda: training_step(decoder("Llama"), language_loss(8), amp=True),
    "bert": lambda: training_step(
        transformers_model(
            "Bert",
            hidden_size=512,
            intermediate_size=2048,
            num_hidden_layers=2,
            num_attention_heads=8,
            vocab_size=WORDS,
        ),
        language_loss(8),
    ),
    "t5": lambda: training_step(
        transformers_model(
            "T5",
            d_model=512,
            d_ff=1024,
            num_layers=2,
            d_kv=64,
            vocab_size=WORDS,
            decoder_start_token_id=0,
        ),
        language_loss(8, 256),
    ),
    "unet": unet,
    "dit, AMP": dit,
    "dlrm": dlrm,
    "cross": cross,
    "towers": towers,
    "flex_attention, AMP": flex_attention_block,
}
