"""Find a language model's configuration by its name, without a download."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbmem.core.errors import UsageError
from nbmem.core.suggestions import suggest

_TABLE = Path(__file__).parent / "published.toml"
_TRAINING = re.compile(r"-(instruct|chat|it|pt|hf|base|bnb|4bit|unsloth)(?=-|$)")
"""Words in names that say how a model was trained or stored, and not how large it is."""
_SUFFIX = re.compile(r"-(v\d+(\.\d+)?|\d{4}|\d+k)$")
"""Versions at the end of names, most of which have the sizes of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model whose configuration is at hand.

    Attributes:
        title: What an answer calls it.
        code: An expression that makes its configuration, with transformers' `AutoConfig`.
        origin: Where the configuration is from, as a sentence.
        repo: Its weights on huggingface.co; None if they are not known.
    """

    title: str
    code: str
    origin: str
    repo: str | None = None


def find_model(name: str) -> KnownModel:
    """Return a model by a path, a published name, or a class of transformers.

    Args:
        name: A config.json or its folder, a name such as `llama-3.1-8b`, a name that the cache of
            huggingface.co has, or a class or model type of transformers.

    Raises:
        UsageError: Nothing of that name is at hand; the message lists what is.
    """
    path = Path(name).expanduser()
    if path.exists() or name.endswith(".json"):
        return _of_path(name, path)
    found = _cached(name) if "/" in name else None
    found = found or _published(name) or _of_class(name)
    if found is not None:
        return found
    titles = (*_table(), *(alias for one in _table().values() for alias in one.get("aliases", ())))
    raise UsageError(
        f"No model is called {name!r}. {suggest(name.rpartition('/')[2], titles)}Known without a "
        f"download: {', '.join(_table())}. For any other, name its config.json or the folder that "
        "has it (--model path/to/config.json), a model that is in the cache of huggingface.co, or "
        "a class of transformers with its default sizes (--model LlamaForCausalLM)."
    )


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))


def published() -> dict[str, int]:
    """Return the models of the table and the number of their parameters."""
    return {name: one["parameters"] for name, one in _table().items()}


def _plain(name: str) -> str:
    """Return a name without maker, case and dashes."""
    word = name.rpartition("/")[2].lower().removeprefix("meta-")
    return re.sub(r"[^a-z0-9]", "", word)


def _spellings(name: str) -> list[str]:
    """Return a name, then without words about training, then without more."""
    word = name.rpartition("/")[2].lower().replace("_", "-").replace(":", "-")
    found = [word, _TRAINING.sub("", word)]
    while (shorter := _SUFFIX.sub("", found[-1])) != found[-1]:
        found.append(shorter)
    return found


def _published(name: str) -> KnownModel | None:
    keys = {}
    for key, one in _table().items():
        for known in (key, one["repo"], *one.get("aliases", ())):
            keys[_plain(known)] = key
    found = next((keys[word] for word in map(_plain, _spellings(name)) if word in keys), None)
    if found is None:
        return None
    one = _table()[found]
    sizes = dict(one["config"])
    if sizes.get("sliding_window") is False:  # TOML has no null
        sizes["sliding_window"] = None
    written = "".join(f"    {k}={v!r},\n" for k, v in sizes.items())
    return KnownModel(
        title=found,
        code=f'AutoConfig.for_model(\n    "{one["type"]}",\n{written})',
        origin=f"Sizes as in https://huggingface.co/{one['repo']}/blob/main/config.json.",
        repo=one["repo"],
    )


def _of_path(name: str, path: Path) -> KnownModel:
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        kind = config["model_type"]
    except OSError as err:
        raise UsageError(
            f"Cannot read {file}: {err.strerror}. Name a config.json or the folder that has it."
        ) from None
    except (ValueError, TypeError, KeyError):
        raise UsageError(
            f"{file} is no configuration of transformers: it has no model_type. Name the "
            "config.json of a model."
        ) from None
    title = file.parent.resolve().name if file.name == "config.json" else file.stem
    return KnownModel(
        title=title,
        code=f"AutoConfig.from_pretrained({str(file.resolve())!r})",
        origin=f"Sizes from {name} ({kind}).",
    )


def _cached(name: str) -> KnownModel | None:
    """Return a model whose config.json an earlier download has left."""
    try:
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(name, "config.json")
    except Exception:  # noqa: BLE001 - not installed, or no name of a repository
        return None
    if not isinstance(file, str):
        return None
    return KnownModel(
        title=name.rpartition("/")[2],
        code=f'AutoConfig.from_pretrained("{name}", local_files_only=True)',
        origin=f"Sizes from the config.json of {name} in the cache of huggingface.co.",
        repo=name,
    )


def _of_class(name: str) -> KnownModel | None:
    """Return a class or model type of transformers with its default sizes."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError:
        return None
    kinds = {_plain(kind): kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    for kind, cls in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        kinds[_plain(cls)] = kind
        kinds[_plain(cls).replace("forcausallm", "config")] = kind
    kind = kinds.get(_plain(name))
    if kind is None:
        return None
    return KnownModel(
        title=MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind],
        code=f'AutoConfig.for_model("{kind}")',
        origin=(
            f"The default sizes of transformers' {kind}, which may be those of no model that was "
            "published."
        ),
    )
