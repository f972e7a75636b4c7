"""Models of many libraries with a batch and a loss, for one step.

Each library is asked for what it has; none is a requirement. Models are made on the CPU, without
drawing their weights, and small: what decides is which operators run, not how wide they are.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

IMAGE, CLASSES, BATCH, LENGTH = 64, 10, 2, 32
TOKENS = 512
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 128),
    **dict.fromkeys(("d_ff", "n_inner", "hidden_dim", "moe_intermediate_size"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "rotary_dim"), 16),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 128),
    "vocab_size": TOKENS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""What the configurations of transformers call the same thing, and how large it is made."""


class Program(NamedTuple):
    """A model and how it is trained.

    Attributes:
        model: On the CPU.
        batch: What it takes, on the CPU.
        loss: Of the model and the batch on the card, a number.
    """

    model: nn.Module
    batch: Any
    loss: Callable[[nn.Module, Any], torch.Tensor]


Made = tuple[str, "Callable[[], Program]"]


@contextlib.contextmanager
def without_weight_initialization() -> Iterator[None]:
    """Skip the initialization of weights, which takes longest."""
    names = [n for n in dir(nn.init) if n.endswith("_") and not n.startswith("_")]
    drawn = {name: getattr(nn.init, name) for name in names}
    for name in names:
        setattr(nn.init, name, lambda tensor, *_args, **_kwargs: tensor)
    try:
        yield
    finally:
        for name, function in drawn.items():
            setattr(nn.init, name, function)


def mean_of(results: Any) -> torch.Tensor:
    """Reduce everything that has a gradient to one number."""
    leaves = torch.utils._pytree.tree_leaves(results)
    found = [y for y in leaves if isinstance(y, torch.Tensor) and y.requires_grad]
    return sum((y.float().mean() for y in found[1:]), found[0].float().mean())


def classified(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    results = model(images)
    first = results if isinstance(results, torch.Tensor) else results[0]
    return nn.functional.cross_entropy(first, labels)


def images(size: int, count: int = BATCH) -> torch.Tensor:
    return torch.rand(count, 3, size, size)


def _classifier(make: Callable[..., nn.Module], size: int, **options: Any) -> Program:
    return Program(make(**options), (images(size), torch.arange(BATCH)), classified)


def torchvision_models() -> Iterator[Made]:
    """Yield one classifier of each family, segmentation and detection."""
    known = importlib.import_module("torchvision.models")
    families: dict[str, str] = {}
    for name in known.list_models(module=known):
        families.setdefault(name.rstrip("0123456789_bglmsthx").split("_")[0], name)
    for name in [*families.values(), "resnet50", "vit_b_32", "swin_v2_t", "mobilenet_v3_large"]:
        # Inception's last layers want as much.
        size = 299 if name.startswith("inception") else 224 if "vit" in name else IMAGE
        yield (
            f"torchvision {name}",
            lambda n=name, s=size: _classifier(
                lambda: known.get_model(n, weights=None, num_classes=CLASSES), s
            ),
        )
    for name in known.list_models(module=known.segmentation):
        yield f"torchvision {name}", lambda n=name: _segmented(known, n)
    for name in known.list_models(module=known.detection):
        yield f"torchvision {name}", lambda n=name: _detected(known, n)


def _segmented(known: Any, name: str) -> Program:
    model = known.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES)
    labels = torch.zeros(BATCH, IMAGE, IMAGE, dtype=torch.long)
    return Program(
        model,
        (images(IMAGE), labels),
        lambda m, b: nn.functional.cross_entropy(m(b[0])["out"], b[1]),
    )


def _detected(known: Any, name: str) -> Program:
    model = known.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES)
    targets = [
        {
            "boxes": torch.tensor([[5.0, 5.0, 40.0, 40.0]]),
            "labels": torch.ones(1, dtype=torch.long),
            "masks": torch.ones(1, 96, 96, dtype=torch.uint8),
            "keypoints": torch.ones(1, 17, 3),
        }
        for _ in range(BATCH)
    ]
    return Program(model, (list(images(96)), targets), lambda m, b: sum(m(b[0], b[1]).values()))


_SMALLEST = ("test_", "atto", "femto", "pico", "nano", "micro", "tiny", "_xxs", "_xs", "small")
"""What the names of timm's smallest models have in them."""


def timm_models() -> Iterator[Made]:
    """Yield the smallest model of each file of timm."""
    timm = importlib.import_module("timm")
    files: dict[str, list[str]] = {}
    for name in timm.list_models():
        files.setdefault(timm.models.model_entrypoint(name).__module__, []).append(name)
    for names in files.values():
        small = (name for part in _SMALLEST for name in names if part in name)
        chosen = next(small, names[0])
        yield f"timm {chosen}", lambda n=chosen: _timm(timm, n)


def _timm(timm: Any, name: str) -> Program:
    config = timm.models.get_pretrained_cfg(name)
    fixed = config is not None and (config.fixed_input_size or config.min_input_size)
    size = config.input_size[-1] if fixed else 96
    model = timm.create_model(name, pretrained=False, num_classes=CLASSES)
    return Program(model, (images(size), torch.arange(BATCH)), classified)


def transformers_models() -> Iterator[Made]:
    """Yield every architecture that learns from tokens or images."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    for kind, feed in (
        ("CAUSAL_LM", _tokens),
        ("MASKED_LM", _tokens),
        ("SEQ_TO_SEQ_CAUSAL_LM", _tokens),
        ("IMAGE_CLASSIFICATION", _pixels),
    ):
        for name, listed in getattr(auto, f"MODEL_FOR_{kind}_MAPPING_NAMES").items():
            made = listed[0] if isinstance(listed, tuple) else listed
            yield f"transformers {made}", lambda n=name, m=made, f=feed: _transformer(n, m, f)


def _transformer(name: str, made: str, feed: Callable[[Any], Any]) -> Program:
    transformers = importlib.import_module("transformers")
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    kind = auto.CONFIG_MAPPING[name]
    plain = kind()
    # A list says it for each stage, a property follows from the others.
    has = {
        name: value
        for name, value in SMALL.items()
        if type(getattr(plain, name, None)) is int
        and not isinstance(getattr(kind, name, None), property)
    }
    config = kind(**has)
    if getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    return Program(
        getattr(transformers, made)(config),
        feed(plain),
        lambda m, b: m(**b).loss,
    )


def _tokens(config: Any) -> dict[str, Any]:
    del config
    tokens = torch.randint(3, TOKENS, (BATCH, LENGTH))
    return {"input_ids": tokens, "labels": tokens.clone()}


def _pixels(config: Any) -> dict[str, Any]:
    size = getattr(config, "image_size", 224)
    size = size if isinstance(size, int) else size[0]
    return {"pixel_values": images(size), "labels": torch.zeros(BATCH, dtype=torch.long)}


def diffusers_models() -> Iterator[Made]:
    """Yield small UNets, transformers and autoencoders of diffusers."""
    known = importlib.import_module("diffusers")
    blocks = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(*batch).sample, batch[0][:, : batch[0].size(1)])

    def latents(channels: int) -> torch.Tensor:
        return torch.rand(BATCH, channels, 32, 32)

    yield "diffusers UNet2DModel", lambda: Program(
        known.UNet2DModel(
            sample_size=32, **blocks, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8,
        ),
        (latents(3), torch.tensor([1, 2])), step,
    )  # fmt: skip
    yield "diffusers UNet2DConditionModel", lambda: Program(
        known.UNet2DConditionModel(
            sample_size=32, **blocks, cross_attention_dim=32, attention_head_dim=8,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        ),
        (latents(4), torch.tensor([1, 2]), torch.rand(BATCH, 7, 32)), step,
    )  # fmt: skip
    coded = {
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
    }
    for name in ("AutoencoderKL", "VQModel"):
        yield (
            f"diffusers {name}",
            lambda n=name: Program(getattr(known, n)(**blocks, **coded), (latents(3),), step),
        )
    yield "diffusers AutoencoderTiny", lambda: Program(known.AutoencoderTiny(), (latents(3),), step)
    yield "diffusers DiTTransformer2DModel", lambda: Program(
        known.DiTTransformer2DModel(
            num_attention_heads=2, attention_head_dim=16, in_channels=4, num_layers=2,
            sample_size=32, out_channels=4, norm_num_groups=4,
        ),
        (latents(4), torch.tensor([1, 2]), torch.tensor([0, 1])), step,
    )  # fmt: skip


def peft_models() -> Iterator[Made]:
    """Adapters of several kinds on a small GPT-2 and Llama."""
    peft = importlib.import_module("peft")
    kinds = {
        "LoRA": lambda: peft.LoraConfig(r=4, lora_dropout=0.1, target_modules="all-linear"),
        "DoRA": lambda: peft.LoraConfig(r=4, use_dora=True, target_modules="all-linear"),
        "IA3": lambda: peft.IA3Config(task_type="CAUSAL_LM"),
        "LoHa": lambda: peft.LoHaConfig(r=4, target_modules="all-linear"),
        "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    }
    for name, config in kinds.items():

        def made(config: Any = config) -> Program:
            plain = _transformer("llama", "LlamaForCausalLM", _tokens)
            return plain._replace(model=peft.get_peft_model(plain.model, config()))

        yield f"peft {name}", made


def graph_models() -> Iterator[Made]:
    """Convolutions of graphs over one made-up graph."""
    known = importlib.import_module("torch_geometric.nn")
    graph = (torch.rand(50, 16), torch.randint(0, 50, (2, 200)))
    for name in ("GCN", "GAT", "GIN", "GraphSAGE", "EdgeCNN"):
        yield (
            f"torch_geometric {name}",
            lambda n=name: Program(
                getattr(known.models, n)(16, 32, 2, CLASSES, dropout=0.5),
                graph,
                lambda m, b: mean_of(m(*b)),
            ),
        )


def segmentation_models() -> Iterator[Made]:
    """The decoders of segmentation_models_pytorch."""
    known = importlib.import_module("segmentation_models_pytorch")
    for name in ("Unet", "UnetPlusPlus", "FPN", "PSPNet", "DeepLabV3Plus", "Linknet", "MAnet"):
        yield (
            f"smp {name}",
            lambda n=name: Program(
                getattr(known, n)("resnet18", encoder_weights=None, classes=CLASSES),
                (images(IMAGE),),
                lambda m, b: mean_of(m(*b)),
            ),
        )


LIBRARIES: tuple[Callable[[], Iterator[Made]], ...] = (
    torchvision_models, transformers_models, timm_models, diffusers_models, peft_models,
    graph_models, segmentation_models,
)  # fmt: skip


def programs() -> Iterator[Made]:
    """Of all libraries that are here."""
    for library in LIBRARIES:
        try:
            yield from library()
        except ImportError as err:
            print(f"left out, {err}", flush=True)
