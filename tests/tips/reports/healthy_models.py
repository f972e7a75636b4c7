"""Healthy programs of other people's models: small ones of transformers, trained and evaluated."""

from __future__ import annotations

from collections.abc import Iterator

HEAD = """import torch
from transformers import CONFIG_MAPPING, {auto}

config = CONFIG_MAPPING["{kind}"]({sizes})
model = {auto}.from_config(config).cuda()
"""
BATCH = "dict(input_ids=torch.randint(3, 900, ({rows}, {length}), device='cuda'){more})"
LABELS = ", labels=torch.randint(3, 900, ({rows}, {length}), device='cuda')"
PICTURE_BATCH = (
    "dict(pixel_values=torch.randn(16, 3, {size}, {size}, device='cuda'), "
    "labels=torch.randint(10, (16,), device='cuda'))"
)
TRAIN = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for epoch in range(2):
    model.train()
    for _ in range(3):
        batch = {batch}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.item()
        del batch
    model.eval()
    total = 0.0
    with torch.no_grad():
        for _ in range(2):
            total += model(**{batch}).loss.item()
"""
GENERATE = """
model.eval()
prompts = torch.randint(3, 900, (4, 32), device="cuda")
with torch.no_grad():
    for _ in range(2):
        texts = model.generate(prompts, max_new_tokens=6, do_sample=False).cpu()
"""
EMBED = """
model.eval()
found = []
with torch.inference_mode():
    for _ in range(6):
        found.append(model(**{batch}).last_hidden_state.mean(1).cpu())
"""
_SMALL = "vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=3"
_SMALL += ", num_attention_heads=4"
_GROUPED = f"{_SMALL}, num_key_value_heads=2"
DECODERS = {
    "llama": _GROUPED, "mistral": _GROUPED, "qwen2": _GROUPED, "gemma": f"{_GROUPED}, head_dim=64",
    "phi": _SMALL, "phi3": f"{_GROUPED}, pad_token_id=0", "gpt_neox": _SMALL, "stablelm": _GROUPED,
    "starcoder2": _GROUPED, "olmo": _GROUPED, "cohere": _GROUPED, "granite": _GROUPED,
    "mixtral": f"{_GROUPED}, num_local_experts=4", "qwen3": f"{_GROUPED}, head_dim=64",
    "gpt2": "vocab_size=1000, n_embd=256, n_layer=3, n_head=4",
    "gpt_neo": "vocab_size=1000, hidden_size=256, num_layers=2, num_heads=4"
    ", attention_types=[[['global', 'local'], 1]]",
    "gptj": "vocab_size=1000, n_embd=256, n_layer=3, n_head=4, rotary_dim=32",
    "opt": "vocab_size=1000, hidden_size=256, ffn_dim=512, num_hidden_layers=3"
    ", num_attention_heads=4, word_embed_proj_dim=256",
    "bloom": "vocab_size=1000, hidden_size=256, n_layer=3, n_head=4",
    "falcon": "vocab_size=1000, hidden_size=256, num_hidden_layers=3, num_attention_heads=4",
    "biogpt": _SMALL, "codegen": "vocab_size=1000, n_embd=256, n_layer=3, n_head=4, rotary_dim=32",
}  # fmt: skip
MASKED = {
    "bert": _SMALL, "roberta": f"{_SMALL}, pad_token_id=1",
    "electra": f"{_SMALL}, embedding_size=128",
    "distilbert": "vocab_size=1000, dim=256, hidden_dim=512, n_layers=3, n_heads=4",
    "albert": _SMALL, "deberta-v2": _SMALL, "mobilebert": "vocab_size=1000, num_hidden_layers=3",
    "camembert": f"{_SMALL}, pad_token_id=1", "ernie": _SMALL,
    "modernbert": f"{_SMALL}, pad_token_id=0",
    "convbert": f"{_SMALL}, embedding_size=256", "megatron-bert": _SMALL,
    "layoutlm": _SMALL, "xlm-roberta": f"{_SMALL}, pad_token_id=1", "roformer": _SMALL,
    "rembert": f"{_SMALL}, input_embedding_size=256, output_embedding_size=256",
}  # fmt: skip
_TWO = "vocab_size=1000, d_model=256, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=512"
_TWO += ", decoder_ffn_dim=512, encoder_attention_heads=4, decoder_attention_heads=4"
_STARTED = f"{_TWO}, pad_token_id=0, decoder_start_token_id=0"
SEQUENCES = {
    "t5": "vocab_size=1000, d_model=256, d_ff=512, num_layers=2, num_heads=4, d_kv=64"
    ", decoder_start_token_id=0",
    "bart": _TWO, "mbart": _TWO, "pegasus": _STARTED, "m2m_100": _STARTED, "marian": _STARTED,
}  # fmt: skip
_STAGES = "depths=[1, 1, 2, 1], num_labels=10"
_PATCHES = f"num_labels=10, {_SMALL.partition(', ')[2]}"
PICTURES = {
    "vit": _PATCHES, "beit": _PATCHES,
    "dinov2": "hidden_size=256, num_hidden_layers=3, num_attention_heads=4, num_labels=10",
    "swin": "embed_dim=48, depths=[1, 1], num_heads=[2, 4], num_labels=10",
    "convnext": f"hidden_sizes=[32, 64, 96, 128], {_STAGES}",
    "regnet": f"hidden_sizes=[32, 64, 96, 128], groups_width=16, {_STAGES}",
    "resnet": f"hidden_sizes=[64, 128, 192, 256], embedding_size=32, layer_type='basic', {_STAGES}",
    "poolformer": _STAGES, "cvt": "num_labels=10", "mobilenet_v2": "num_labels=10",
    "efficientnet": "num_labels=10, image_size=128",
}  # fmt: skip


def healthy_models() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each program."""
    rows = {"rows": 16, "length": 128}
    trained = BATCH.format(**rows, more=LABELS.format(**rows))
    plain = BATCH.format(**rows, more="")
    for kind, sizes in DECODERS.items():
        head = HEAD.format(kind=kind, sizes=sizes, auto="AutoModelForCausalLM")
        yield f"train_{kind}", head + TRAIN.format(batch=trained)
        if kind in ("llama", "gpt2", "opt", "bloom", "gpt_neox", "mixtral"):
            yield f"generate_{kind}", head + GENERATE
    for kind, sizes in MASKED.items():
        head = HEAD.format(kind=kind, sizes=sizes, auto="AutoModelForMaskedLM")
        yield f"train_{kind}", head + TRAIN.format(batch=trained)
        if kind in ("bert", "albert", "distilbert"):
            head = HEAD.format(kind=kind, sizes=sizes, auto="AutoModel")
            yield f"embed_{kind}", head + EMBED.format(batch=plain)
    for kind, sizes in SEQUENCES.items():
        head = HEAD.format(kind=kind, sizes=sizes, auto="AutoModelForSeq2SeqLM")
        yield f"train_{kind}", head + TRAIN.format(batch=trained)
    for kind, sizes in PICTURES.items():
        head = HEAD.format(kind=kind, sizes=sizes, auto="AutoModelForImageClassification")
        size = 128 if kind == "efficientnet" else 224
        yield f"train_{kind}", head + TRAIN.format(batch=PICTURE_BATCH.format(size=size))
