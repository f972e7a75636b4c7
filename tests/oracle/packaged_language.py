"""Compiled programs of language packages.

The planner was written without them, so they show what it does with new programs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.oracle.programs import decoder, language_loss, token_ids, training_step

VOCABULARY = 16384


def llama(**options: Any) -> nn.Module:
    return decoder("Llama", vocab_size=VOCABULARY, **options)


def checkpointed() -> Callable[[], Any]:
    """Train with transformers' gradient checkpointing and AMP."""
    model = decoder("Qwen2", num_hidden_layers=4, vocab_size=VOCABULARY, use_cache=False)
    model.gradient_checkpointing_enable()  # type: ignore[operator]
    return training_step(model, language_loss(16), amp=True)


def lora() -> Callable[[], Any]:
    """Train LoRA adapters of PEFT in bfloat16."""
    import peft

    config = peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
    model = peft.get_peft_model(llama(num_hidden_layers=3).to(torch.bfloat16), config)  # type: ignore[arg-type]
    return training_step(model, language_loss(16))


def generating(*, compiles_forward: bool) -> Callable[[], Any]:
    """Generate eight tokens with a static cache.

    The forward is compiled here, or by `generate` itself.
    """
    model: Any = llama(num_hidden_layers=3).to(torch.bfloat16).cuda().eval()
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    if compiles_forward:
        model.forward = torch.compile(model.forward, fullgraph=True)
    words = token_ids(8, 128)

    def step() -> None:
        # Whether a row has ended is read from the card, whose values are unknown.
        left = iter([True] * 8)
        model._has_unfinished_sequences = lambda *_args, **_options: next(left, False)
        model.generate(
            words,
            attention_mask=torch.ones_like(words),
            max_new_tokens=16,
            do_sample=False,
            cache_implementation="static",
            disable_compile=compiles_forward,
        )

    return step


def whisper() -> Callable[[], Any]:
    import transformers

    config = transformers.WhisperConfig(
        d_model=256,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        vocab_size=8192,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    sound = torch.randn(8, 80, 3000, device="cuda")
    words = token_ids(8, 128)
    return training_step(model, lambda m: m(input_features=sound, labels=words).loss, amp=True)


def whole_step() -> Callable[[], Any]:
    """Compile forward and loss as one function; accumulate gradients twice."""
    model: Any = llama().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    words = token_ids(4)

    @torch.compile
    def loss_of(given: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(input_ids=given).logits
        return cross_entropy(logits.flatten(0, 1).float(), given.flatten())

    def step() -> None:
        for _ in range(2):
            (loss_of(words) / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def documents() -> Callable[[], Any]:
    """Train flex_attention with packed documents, GQA and a sliding window."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    of = (torch.arange(2048, device="cuda") // 300).expand(4, -1).contiguous()

    def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (q - k < 512) & (of[b, q] == of[b, k])

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.kv = nn.Linear(512, 512), nn.Linear(512, 256)
            self.out = nn.Linear(512, 512)

        def forward(self, x: torch.Tensor, mask: Any) -> torch.Tensor:
            b, n, c = x.shape
            q = self.q(x).view(b, n, 8, 64).transpose(1, 2)
            k, v = self.kv(x).view(b, n, 2, 2, 64).permute(2, 0, 3, 1, 4)
            y = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
            return x + self.out(y.transpose(1, 2).reshape(b, n, c))

    x = torch.randn(4, 2048, 512, device="cuda")

    def loss(m: Any) -> torch.Tensor:
        mask = create_block_mask(seen, 4, None, 2048, 2048, device="cuda")
        return m(x, mask).square().mean()

    return training_step(Attending(), loss, amp=True)


def _products(_context: Any, op: Any, *_args: Any, **_options: Any) -> Any:
    from torch.utils.checkpoint import CheckpointPolicy

    kept = op in {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def selective() -> Callable[[], Any]:
    """Train with selective checkpointing that saves matrix products."""
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    contexts = functools.partial(create_selective_checkpoint_contexts, _products)

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    512, 8, 2048, dropout=0.1, batch_first=True, norm_first=True
                )
                for _ in range(3)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False, context_fn=contexts)
            return x

    x = torch.randn(16, 512, 512, device="cuda")
    return training_step(Stack(), lambda m: m(x).square().mean())


def recurrent() -> Callable[[], Any]:
    """Train an LSTM between embeddings and a head: a graph break."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(8192, 256)
            self.lstm = nn.LSTM(256, 512, 2, batch_first=True, dropout=0.1)
            self.head = nn.Sequential(nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 8192))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.words(x))[0])

    words = token_ids(16, 256)
    return training_step(Reader(), lambda m: cross_entropy(m(words).flatten(0, 1), words.flatten()))


def tuned() -> Callable[[], Any]:
    """Train with max-autotune over ATen's kernels (docs/limits.md)."""
    torch._inductor.config.max_autotune_gemm_backends = "ATEN"
    torch._inductor.config.max_autotune_conv_backends = "ATEN"
    model = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    x = torch.randn(16, 256, 512, device="cuda")
    return training_step(model, lambda m: m(x).square().mean(), mode="max-autotune")


WORDS: dict[str, Callable[[], Callable[[], Any]]] = {
    "transformers Qwen2, checkpoints, AMP": checkpointed,
    "transformers Whisper, AMP": whisper,
    "transformers generate, static cache": lambda: generating(compiles_forward=True),
    "transformers generate, compiled by itself": lambda: generating(compiles_forward=False),
    "transformers Llama, loss inside, accumulated": whole_step,
    "PEFT LoRA": lora,
    "flex_attention, documents, AMP": documents,
    "selective checkpoints": selective,
    "LSTM": recurrent,
    "max-autotune, ATen": tuned,
}
