"""Training workloads whose memory was recorded on an H100.

`build()` returns (model, batch(), loss(model, batch)); the options are those of the recordings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    Build = Callable[[], tuple[nn.Module, Callable[[], Any], Callable[[nn.Module, Any], Any]]]

CFG: dict[str, tuple[Build, dict[str, Any]]] = {}
LLAMA = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}


def cfg(name: str, **opts: Any) -> Callable[[Build], Build]:
    def remember(build: Build) -> Build:
        CFG[name] = (build, opts)
        return build

    return remember


def _suffix(opts: dict[str, Any]) -> str:
    return "".join(f"_{k}" if v is True else f"_{k}{v}" for k, v in opts.items())


def vision(name: str, rows: int, size: int = 224, opt: str = "sgdm", **opts: Any) -> None:
    def build() -> Any:
        from torchvision import models

        more = (
            {"aux_logits": False, "init_weights": False}
            if name in ("inception_v3", "googlenet")
            else {}
        )
        model = getattr(models, name)(weights=None, **more)
        return (
            model,
            lambda: (torch.randn(rows, 3, size, size), torch.randint(0, 1000, (rows,))),
            lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        )

    # The recordings' names write amp=bf16 as `ampbf16` and inference as `infer`.
    tag = _suffix(opts)
    CFG[f"{name}_b{rows}_{opt}{tag}"] = (build, {"opt": opt, **opts})


vision("resnet50", 32)
vision("resnet50", 64, amp="bf16")
vision("resnet50", 64, amp="fp16")
vision("resnet152", 16)
vision("vgg16", 32)
vision("densenet121", 32)
vision("mobilenet_v3_large", 64, opt="rmsprop")
vision("inception_v3", 32, size=299, opt="rmsprop")
vision("convnext_tiny", 32, opt="adamw")
vision("squeezenet1_1", 64, opt="adagrad")
vision("vit_b_16", 32, opt="adamw")
vision("swin_t", 32, opt="adamw")
vision("shufflenet_v2_x1_0", 64, opt="adam")
vision("resnet50", 32, infer=True)
vision("resnet50", 32, zero=True)
vision("resnet50", 32, opt="adam", noforeach=True)
vision("resnet50", 40, offload=True)
vision("resnet50", 32, expandable=True)
vision("resnet101", 32, compile=True)


@cfg("deeplabv3_resnet50_b8_sgdm", opt="sgdm")
def _deeplab() -> Any:
    from torchvision.models.segmentation import deeplabv3_resnet50

    model = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21)
    return (
        model,
        lambda: (torch.randn(8, 3, 320, 320), torch.randint(0, 21, (8, 320, 320))),
        lambda m, b: F.cross_entropy(m(b[0])["out"], b[1]),
    )


def hugging(  # noqa: PLR0913 - one workload a line
    tag: str,
    model_class: str,
    config_class: str,
    config: dict[str, Any],
    rows: int,
    length: int,
    opt: str = "adamw",
    task: str = "lm",
    **opts: Any,
) -> None:
    def build() -> Any:
        import transformers

        made = getattr(transformers, config_class)(**config)
        model = getattr(transformers, model_class)(made)
        if opts.get("ckpt"):
            model.gradient_checkpointing_enable()

        def batch() -> Any:
            x = torch.randint(0, made.vocab_size, (rows, length))
            return (x, torch.randint(0, 2, (rows,)) if task == "cls" else x.clone())

        return model, batch, lambda m, b: m(input_ids=b[0], labels=b[1]).loss

    CFG[f"{tag}_b{rows}s{length}_{opt}{_suffix(opts)}"] = (build, {"opt": opt, **opts})


GPT2 = {"bos_token_id": 0, "eos_token_id": 0}
hugging("bert_base", "BertForSequenceClassification", "BertConfig", {}, 16, 128, task="cls")
hugging("gpt2", "GPT2LMHeadModel", "GPT2Config", GPT2, 4, 512)
hugging("gpt2", "GPT2LMHeadModel", "GPT2Config", GPT2, 8, 512, amp="bf16")
hugging(
    "t5_small",
    "T5ForConditionalGeneration",
    "T5Config",
    {"decoder_start_token_id": 0, "pad_token_id": 0},
    8,
    256,
    opt="adafactor",
)
hugging("llama160m", "LlamaForCausalLM", "LlamaConfig", LLAMA, 4, 1024, amp="bf16")
hugging(
    "llama160m",
    "LlamaForCausalLM",
    "LlamaConfig",
    {**LLAMA, "use_cache": False},
    8,
    1024,
    amp="bf16",
    ckpt=True,
)
hugging("opt125m", "OPTForCausalLM", "OPTConfig", {}, 8, 256, opt="adam")
hugging(
    "gptneox",
    "GPTNeoXForCausalLM",
    "GPTNeoXConfig",
    {
        "hidden_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "vocab_size": 50304,
    },
    8,
    512,
)


def _per_token(model: nn.Module, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


@cfg("lstm_lm_b32s128_sgd", opt="sgd")
def _lstm() -> Any:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e = nn.Embedding(33278, 650)
            self.r = nn.LSTM(650, 650, 2, dropout=0.5, batch_first=True)
            self.o = nn.Linear(650, 33278)

        def forward(self, x: torch.Tensor) -> Any:
            return self.o(self.r(self.e(x))[0])

    return Language(), lambda: (torch.randint(0, 33278, (32, 128)),) * 2, _per_token


@cfg("gru_cls_b64s200_adam", opt="adam")
def _gru() -> Any:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e = nn.Embedding(20000, 256)
            self.r = nn.GRU(256, 512, 3, bidirectional=True, batch_first=True)
            self.o = nn.Linear(1024, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.o(self.r(self.e(x))[0].mean(1))

    return (
        Classifier(),
        lambda: (torch.randint(0, 20000, (64, 200)), torch.randint(0, 2, (64,))),
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
    )


@cfg("nn_transformer_b32s256_adam", opt="adam")
def _transformer() -> Any:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e = nn.Embedding(10000, 512)
            layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
            self.t = nn.TransformerEncoder(layer, 6)
            self.o = nn.Linear(512, 10000)

        def forward(self, x: torch.Tensor) -> Any:
            return self.o(self.t(self.e(x)))

    return Language(), lambda: (torch.randint(0, 10000, (32, 256)),) * 2, _per_token


@cfg("unet_b8_adam", opt="adam")
def _unet() -> Any:
    def twice(i: int, o: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
        )

    class Unet(nn.Module):
        def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
            super().__init__()
            self.d, self.u, self.t = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
            i = 3
            for x in widths:
                self.d.append(twice(i, x))
                i = x
            self.b = twice(widths[-1], widths[-1] * 2)
            for x in reversed(widths):
                self.t.append(nn.ConvTranspose2d(x * 2, x, 2, 2))
                self.u.append(twice(x * 2, x))
            self.o = nn.Conv2d(widths[0], 2, 1)

        def forward(self, x: torch.Tensor) -> Any:
            kept = []
            for down in self.d:
                x = down(x)
                kept.append(x)
                x = F.max_pool2d(x, 2)
            x = self.b(x)
            for t, u in zip(self.t, self.u, strict=True):
                x = u(torch.cat([t(x), kept.pop()], 1))
            return self.o(x)

    return (
        Unet(),
        lambda: (torch.randn(8, 3, 256, 256), torch.randint(0, 2, (8, 256, 256))),
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
    )


@cfg("dlrm_like_b2048_adagrad", opt="adagrad")
def _dlrm() -> Any:
    class Ranking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e = nn.ModuleList(nn.EmbeddingBag(200000, 64, mode="sum") for _ in range(8))
            self.b = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64))
            self.t = nn.Sequential(nn.Linear(64 * 9, 512), nn.ReLU(), nn.Linear(512, 1))

        def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
            return self.t(torch.cat([self.b(x), *[e(i[:, k]) for k, e in enumerate(self.e)]], 1))

    return (
        Ranking(),
        lambda: (
            (torch.randn(2048, 13), torch.randint(0, 200000, (2048, 8, 4))),
            torch.rand(2048, 1),
        ),
        lambda m, b: F.binary_cross_entropy_with_logits(m(*b[0]), b[1]),
    )


@cfg("timm_vit_small_b64_adamw", opt="adamw", amp="bf16")
def _timm() -> Any:
    import timm

    return (
        timm.create_model("vit_small_patch16_224"),
        lambda: (torch.randn(64, 3, 224, 224), torch.randint(0, 1000, (64,))),
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
    )


@cfg("ddp_resnet50_b32_sgdm", opt="sgdm", ddp=True)
def _ddp() -> Any:
    from torchvision import models

    return (
        models.resnet50(weights=None),
        lambda: (torch.randn(32, 3, 224, 224), torch.randint(0, 1000, (32,))),
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
    )


@cfg("cudagraph_mlp_b512_sgd", opt="sgd", cudagraph=True)
def _graph() -> Any:
    layers = [x for _ in range(8) for x in (nn.Linear(2048, 2048), nn.ReLU())]
    return (
        nn.Sequential(*layers, nn.Linear(2048, 10)),
        lambda: (torch.randn(512, 2048), torch.randint(0, 10, (512,))),
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
    )
