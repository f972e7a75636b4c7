"""Match a dictionary's keys with the names, shapes and types of weights."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import VIEW

if TYPE_CHECKING:
    from nbmem.core.session.session import StorageLabels

OWNED = (Category.WEIGHTS, Category.BUFFERS, Category.OPTIMIZER_STATE)
"""Categories of what a model or its optimizer uses; a loaded checkpoint is none of them."""
_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.|_fsdp_wrapped_module\.)+")
"""What DataParallel, torch.compile and FSDP put before the names of weights."""
_KEY = re.compile(r"\['([^']*)'\](?: of \S+\(\))?$")
_FORM = re.compile(r"\([\d, ]*\) \w+")


class WeightNames:
    """The names and forms of weights, sorted for bisection.

    A checkpoint has as many keys as the model has weights; comparing all pairs takes minutes.

    Args:
        weights: The shape and type of each weight, by its name.

    Attributes:
        forms: The shapes and types.
    """

    def __init__(self, weights: Mapping[str, str]) -> None:
        self.forms = frozenset(weights.values())
        self._weights = weights

    @cached_property
    def _reversed(self) -> list[str]:
        return sorted(f"{form}\n{name[::-1]}" for name, form in self._weights.items())

    def match(self, key: str, form: str, prefix: str = "") -> bool:
        """Return whether a weight of this form has a name that ends in a key.

        If none has, the key counts without a prefix that all keys share.
        """
        wanted = f"{form}\n{key[::-1]}."
        at = bisect_left(self._reversed, wanted)
        if at < len(self._reversed) and self._reversed[at].startswith(wanted):
            return True
        shorter = key.removeprefix(prefix)
        return shorter != key and self.match(shorter, form)


def shared_prefix(keys: Iterable[str]) -> str:
    """Return the prefix of all keys: `model.` of a Lightning checkpoint."""
    modules = zip(*(key.split(".")[:-1] for key in keys), strict=False)
    shared = takewhile(lambda parts: len(set(parts)) == 1, modules)
    return "".join(f"{parts[0]}." for parts in shared)


def weight_forms(labels: StorageLabels, texts: Sequence[str]) -> dict[str, str]:
    """Return the shape and type of each weight, by its name in the notebook.

    Args:
        labels: What probes recorded.
        texts: The session's names.
    """
    rows = np.flatnonzero(labels.category == Category.WEIGHTS)
    names = (texts[i] for i in np.unique(labels.name[rows]).tolist())
    return dict(filter(None, map(split_name, names)))


def split_name(name: str) -> tuple[str, str] | None:
    """Split a tensor's name from its shape and type; None where it has none."""
    whole = name.removesuffix(VIEW)
    at = whole.rfind(" (")
    form = whole[at + 1 :]
    return (whole[:at], form) if at >= 0 and _is_form(form) else None


@lru_cache(maxsize=1_000)
def _is_form(text: str) -> bool:
    """Return whether a text is a shape and a type."""
    return _FORM.fullmatch(text) is not None


def last_key(path: str) -> str | None:
    """Return the last key of a path, or None if it does not end in a key.

    What a wrapper puts before a weight's name is left out: `module.0.weight` becomes `0.weight`.
    """
    match = _KEY.search(path)
    return None if match is None else _WRAPPERS.sub("", match[1])
