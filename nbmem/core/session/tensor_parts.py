"""Name the parts of a category: sub-lines that add up to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nbmem.core.session.categories import Category

KV_CACHE = "KV cache"
"""What a language model keeps of earlier tokens. A tensor's name begins with it."""
LOGITS = "logits"
"""The scores of each word of a vocabulary, from which a loss or a sampler reads."""
BASE, ADAPTERS = "base", "adapters"
"""The weights of an adapted model, and those that were added to it (LoRA)."""
REFERENCE = "reference"
"""The weights of a second model of the trained one's class and size, without gradients."""
NCCL = "NCCL"
"""What a communicator holds beside torch, before its name."""
FROZEN, TRAINED = "frozen", "trained"
"""The weights of a partly trained model without adapters."""
MAX_PARTS = 32
"""Parts of a session."""
OTHER = "other"
"""The rest of a category that has parts."""
MEANINGS = {
    KV_CACHE: "keys and values of earlier tokens, which a cache of transformers holds",
    LOGITS: "scores of each word of the vocabulary",
    BASE: "weights of the model to which adapters were added, with their constants",
    ADAPTERS: "weights that were added to a model: LoRA and the like",
    REFERENCE: "weights of a model like the trained one that is only called without gradients",
    FROZEN: "weights that require no gradient, in a model that has others",
    TRAINED: "weights that require a gradient, in a model that has others",
    OTHER: "the rest of the category",
}


class CategoryPart(NamedTuple):
    """A part of a category at one moment.

    Attributes:
        category: The category.
        name: The part's name.
        size: Requested bytes.
    """

    category: Category
    name: str
    size: int


def is_logits_path(path: str) -> bool:
    """Return whether a path leads to the logits of a model's result."""
    return path.endswith((".logits", "['logits']"))


def quantized(part: str, bits: int) -> str:
    """Return the name of a part's quantized weights: `base 4-bit`."""
    return f"{part} {bits}-bit".strip()


def meaning_of(name: str) -> str:
    """Return what a part includes."""
    if name.startswith(f"{NCCL} "):
        return "what NCCL's communicator of this process group holds, by its own count"
    word, _, bits = name.rpartition(" ") if name.endswith("-bit") else (name, "", "")
    meaning = MEANINGS.get(word, "weights")
    return f"{meaning}, quantized to {bits.removesuffix('-bit')} bits" if bits else meaning


def parts_fact(parts: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the parts of names as a session's fact.

    Args:
        parts: The part of each name that has one, by the name's index.
    """
    found: dict[str, list[int]] = {}
    for index, part in parts.items():
        found.setdefault(part, []).append(index)
    return [{"name": part, "names": sorted(found[part])} for part in sorted(found)]


def parts_by_name(facts: Mapping[str, Any]) -> dict[int, str]:
    """Return the part of each name that has one, from a session's facts.

    Of a file with more parts than nbmem writes, only the first ones are read.
    """
    listed = list(facts.get("parts", ()))[:MAX_PARTS]
    return {index: one["name"] for one in listed for index in one["names"]}


def communicator_parts(facts: Mapping[str, Any], device: int, most: int) -> list[tuple[str, int]]:
    """Return what NCCL's communicators hold of a card at the end, by name.

    Empty if that is more than `most`, the bytes beside torch's: then it cannot be.
    """
    told = [one for one in facts.get("communicators", ()) if one["device"] == device]
    parts = [(f"{NCCL} {one['name']}", one["held"]) for one in told[:MAX_PARTS]]
    return parts if sum(held for _, held in parts) <= most else []


def with_rest(parts: Iterable[CategoryPart], whole: int) -> list[tuple[str, int]]:
    """Return the parts of one category and the rest, which add up to it."""
    found = [(one.name, one.size) for one in parts]
    rest = whole - sum(size for _, size in found)
    return [*found, (OTHER, rest)] if found and rest else found
