"""Small models of torchvision, timm and transformers, by name."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import re
from typing import Any

import torch


def names(family: str) -> list[str]:
    """The models of a family: the smallest of each architecture."""
    return {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}[family]()


def build(family: str, name: str) -> tuple[Any, dict[str, Any]]:
    """A model and its arguments, on the CPU."""
    makers = {
        "torchvision": vision_model,
        "timm": image_model,
        "transformers": language_model,
    }
    return makers[family](name)


def checkpoints(model: Any) -> bool:
    """Return whether the model supports activation checkpointing."""
    return bool(getattr(model, "supports_gradient_checkpointing", False))


def _torchvision() -> list[str]:
    models = importlib.import_module("torchvision.models")
    smallest: dict[str, tuple[int, str]] = {}
    for name in models.list_models():
        family = models.get_model_builder(name).__module__
        weights = next(iter(models.get_model_weights(name)), None)
        this = (weights.meta["num_params"] if weights else 0, name)
        if "quantization" not in family:  # They are not trained.
            smallest[family] = min(smallest.get(family, this), this)
    return sorted(name for _, name in smallest.values())


def vision_model(name: str) -> tuple[Any, dict[str, Any]]:
    """A model of torchvision."""
    models = importlib.import_module("torchvision.models")
    builder = models.get_model_builder(name)
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None
    kind = builder.__module__.split(".")[2]
    if kind == "detection" and "ssd" not in name:
        options |= {"min_size": 128, "max_size": 128}
    model = builder(**options)
    if kind == "detection":
        boxes = torch.tensor([[10.0, 10, 60, 60], [30, 20, 90, 100]])
        target = {"boxes": boxes, "labels": torch.tensor([1, 2])}
        target["masks"] = torch.ones(2, 128, 128, dtype=torch.uint8)
        target["keypoints"] = torch.rand(2, 17, 3) * 20 + 20
        return model, {"images": [torch.rand(3, 128, 128)] * 2, "targets": [target] * 2}
    if kind == "optical_flow":
        return model, {"image1": torch.rand(2, 3, 128, 128), "image2": torch.rand(2, 3, 128, 128)}
    first = next(iter(inspect.signature(model.forward).parameters))
    if kind == "video":
        size = (2, 3, 16, 224, 224) if "mvit" in name else (2, 3, 8, 112, 112)
        return model, {first: torch.rand(size)}
    return model, {first: _image(model, (3, 299, 299) if "inception" in name else (3, 224, 224))}


def _image(model: Any, usual: tuple[int, ...]) -> torch.Tensor:
    """Make a batch of two images, tiny if the model takes them."""
    tiny = torch.rand(2, usual[0], 64, 64)
    try:
        with torch.no_grad():
            copy.deepcopy(model)(tiny)
    except (RuntimeError, ValueError, AssertionError, TypeError, IndexError):
        return torch.rand(2, *usual)
    return tiny


_SIZES = re.compile(r"atto|femto|pico|nano|tiny|mini|_xxs|_xs|_t\b|small|_s\b|_s_|_b0|_0_?5")


def _timm() -> list[str]:
    timm = importlib.import_module("timm")
    chosen = []
    for module in timm.list_modules():
        models = timm.list_models(module=module)
        if models:
            small = [name for name in models if _SIZES.search(name)]
            chosen.append(min(small or models, key=len))
    return chosen


def image_model(name: str) -> tuple[Any, dict[str, Any]]:
    """A model of timm, with as small an image as it takes."""
    timm = importlib.import_module("timm")
    model = timm.create_model(name, pretrained=False)
    first = next(iter(inspect.signature(model.forward).parameters))
    return model, {first: _image(model, model.pretrained_cfg["input_size"])}


_SMALL: tuple[tuple[str, Any], ...] = (
    (r".*layerdrop", 0.0),
    (r"(num|n)_.*(key_value|kv)_heads|num_key_value_heads|n_kv_heads", 2),
    (r".*(num|n)_?(.*_)?heads?|encoder_attention_heads|decoder_attention_heads", 4),
    (r"(num_)?(hidden|encoder|decoder|.*)_?layers|n_layers?|num_blocks|depth|encoder_layers", 2),
    (r"embed_dim", 96),
    (r"((attention|encoder)_)?(hidden|embedding|entity_emb|model)_(size|dim)", 64),
    (r"d_model|n_embd|dim", 64),
    (r".*(intermediate|feedforward|ffn|inner|mlp|ff).*_(size|dim)|d_ff|n_inner|d_inner", 128),
    (r"((qk_rope|qk_nope|v)_)?head_dim|d_head|d_kv|attention_head_size|rotary_dim", 16),
    (r"block_size", 2),
    (r"(entity_)?vocab_size", 1000),
    (r"max_position_embeddings|n_positions|max_source_positions|max_target_positions", 256),
    (r"(num_local|num|n_routed)_experts|moe_num_experts", 4),
    (r".*experts_per_tok|moe_top_?k|top_k_experts|router_topk", 2),
    (r"image_size|img_size", 64),
    (r"num_labels|num_queries", 8),
)
"""What a configuration's numbers become; the first pattern that matches a name."""
_ALSO: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_key_value_heads": 4},
    "deepseek_v3": {"num_key_value_heads": 4},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2},
    "layoutlmv3": {"coordinate_size": 12, "shape_size": 8},
    "mamba2": {"num_heads": 8},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"],
                 "lsh_attn_chunk_length": 8, "local_attn_chunk_length": 8},
    "swin": {"image_size": 224},
}  # fmt: skip
"""What a model needs beyond that."""
_BOTH = {"clip", "siglip", "align", "altclip", "chinese_clip", "clipseg", "blip", "groupvit"}
"""Models that take a text and an image side by side."""
_HEADS = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_MASKED_LM", "MODEL_FOR_SPEECH_SEQ_2_SEQ",
    "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_CTC", "MODEL_FOR_OBJECT_DETECTION",
    "MODEL_FOR_IMAGE_CLASSIFICATION", "MODEL_FOR_SEMANTIC_SEGMENTATION",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT", "MODEL_FOR_PRETRAINING", "MODEL",
)  # fmt: skip


def _transformers() -> list[str]:
    for module in ("modeling_utils", "modeling_layers", "generation", "masking_utils"):
        importlib.import_module(f"transformers.{module}")
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    kinds = {_class_of(name): name for name in sorted(auto.CONFIG_MAPPING_NAMES, reverse=True)}
    return sorted(name for kind, name in kinds.items() if kind)


def _class_of(name: str) -> str | None:
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    for head in _HEADS:
        found = getattr(auto, f"{head}_MAPPING_NAMES").get(name)
        if found:
            return found if isinstance(found, str) else found[0]
    return None


def shrunk(config: Any) -> Any:
    """Return the configuration with few layers and channels."""
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_diff_dict"):
            shrunk(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            for pattern, small in _SMALL:
                if re.fullmatch(pattern, key):
                    with contextlib.suppress(Exception):
                        setattr(config, key, min(value, small))
                    break
            if key.endswith("token_id") and value >= 1000:
                setattr(config, key, 3)
        elif key == "depths":
            setattr(config, key, [1] * len(value))
        elif key == "layer_types" and isinstance(value, list):
            keep = list(dict.fromkeys(value))[:2]
            setattr(config, key, (keep * 2)[:2])
    if getattr(config, "is_encoder_decoder", False):
        config.decoder_start_token_id = 3
    return config


def language_model(name: str) -> tuple[Any, dict[str, Any]]:
    """Make a model of transformers with its forward's arguments."""
    transformers = importlib.import_module("transformers")
    kind = getattr(transformers, _class_of(name) or "")
    config = shrunk(transformers.CONFIG_MAPPING[name]())
    for key, value in _ALSO.get(name, {}).items():
        setattr(config, key, value)
    with torch.device("meta"):
        size = sum(p.numel() for p in kind(copy.deepcopy(config)).parameters())
    if size > 150e6:
        raise ValueError(f"{size} parameters are left")
    model = kind(config)
    accepted = inspect.signature(model.forward).parameters
    text = config.get_text_config()
    ids = torch.randint(5, min(getattr(text, "vocab_size", None) or 100, 100), (2, 32))
    side = getattr(getattr(config, "vision_config", config), "image_size", 64) or 64
    height, width = (side, side) if isinstance(side, int) else tuple(side)[-2:]
    channels = getattr(config, "num_channels", 3)
    channels = channels if isinstance(channels, int) else 3
    bins = getattr(config, "num_mel_bins", 80)
    frames = 2 * getattr(config, "max_source_positions", 64)
    made = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "bbox": torch.tensor([10, 10, 50, 60]).expand(2, 32, 4),
        "pixel_values": torch.rand(2, channels, height, width),
        "input_values": torch.rand(2, 4000),
        "input_features": torch.rand(2, bins, frames),
        "past_values": torch.rand(2, 64),
        "decoder_input_ids": ids[:, :8],
    }
    main = model.main_input_name
    wanted = {"input_ids", "attention_mask", "bbox", "pixel_values", "decoder_input_ids"} | {main}
    if main != "input_ids":
        wanted -= {"attention_mask"}
    if "image_text" not in str(kind) and main == "input_ids" and name not in _BOTH:
        wanted -= {"pixel_values"}
    return model, {key: made[key] for key in accepted if key in wanted and key in made}
