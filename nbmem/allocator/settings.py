"""The allocator's settings, parsed from PYTORCH_CUDA_ALLOC_CONF.

They are parsed as torch does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from nbmem.allocator.conf_parser import (
    Value,
    divisions_of,
    flag_of,
    fraction_of,
    mib_of,
    number_of,
    power_of,
    tokens_of,
)
from nbmem.allocator.rounding import LARGE_SEGMENT, NO_DIVISIONS
from nbmem.allocator.torch_rules import NEWEST, Rules, rules_for
from nbmem.core.errors import UsageError
from nbmem.core.session.tensor_names import quoted
from nbmem.core.units import MIB

NO_EFFECT: dict[str, Callable[[str, Value], Any]] = {
    "graph_capture_record_stream_reuse": flag_of,
    "pinned_num_register_threads": power_of,
    "pinned_reserve_segment_size_mb": number_of,
    "pinned_max_cached_size_mb": number_of,
    "pinned_max_round_threshold_mb": number_of,
    "pinned_use_background_threads": flag_of,
    "pinned_use_cuda_host_register": flag_of,
    "pinned_use_hip_host_register": flag_of,
    "release_lock_on_cudamalloc": flag_of,
    "release_lock_on_hipmalloc": flag_of,
}
"""Keys of torch's that change no device memory here, and the parsers of their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """Settings of the caching allocator.

    Attributes:
        conf: The text as the user wrote it.
        max_split_size: Bytes; larger blocks are not split. None: no such limit.
        max_non_split_rounding: Bytes that an unsplit large block may exceed its request by.
        garbage_collection_threshold: Part of the memory limit above which old blocks go; 0: off.
        expandable_segments: Map pages on demand instead of cudaMalloc.
        roundup_power2_divisions: 16 entries, see `rounding.round_size`.
        large_segment_size: Bytes of a segment for medium requests.
        per_process_memory_fraction: Limit as a part of the card; None: not set here.
        throw_on_cudamalloc_oom: Refuse new memory above the limit without a retry.
        rounds: Whether blocks are rounded at all; not where objects were counted, not an allocator.
    """

    conf: str = ""
    max_split_size: int | None = None
    max_non_split_rounding: int = LARGE_SEGMENT
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    roundup_power2_divisions: tuple[int, ...] = NO_DIVISIONS
    large_segment_size: int = LARGE_SEGMENT
    per_process_memory_fraction: float | None = None
    throw_on_cudamalloc_oom: bool = False
    rounds: bool = True

    @classmethod
    def parse(cls, conf: str, release: str = NEWEST) -> Self:
        """Parse the text of PYTORCH_CUDA_ALLOC_CONF.

        Raises:
            UsageError: torch refuses the text, or the text selects another allocator.
        """
        return cls().updated(conf, release)

    @classmethod
    def from_torch(cls, raw: Mapping[str, Any], release: str = NEWEST) -> Self:
        """Read `allocator_settings` of a torch snapshot.

        Unknown keys are ignored.

        The values in force win over the text: torch lists only some of them.
        """
        settings = cls.parse(str(raw.get("PYTORCH_CUDA_ALLOC_CONF") or ""), release)
        found: dict[str, Any] = {}
        if (limit := raw.get("max_split_size")) is not None:
            found["max_split_size"] = int(limit) if 0 < int(limit) < 1 << 60 else None
        if (threshold := raw.get("garbage_collection_threshold")) is not None:
            found["garbage_collection_threshold"] = float(threshold)
        if (expandable := raw.get("expandable_segments")) is not None:
            found["expandable_segments"] = bool(expandable)
        if raw.get("rounds") is False:
            found["rounds"] = False
        if divisions := raw.get("roundup_power2_divisions"):
            entries = [int(divisions.get(str(1 << i), 0)) for i in range(len(NO_DIVISIONS))]
            found["roundup_power2_divisions"] = tuple(entries)
        return replace(settings, **found)

    def updated(self, conf: str, release: str = NEWEST) -> Self:
        """Return the settings after torch's `_set_allocator_settings(conf)`.

        Torch resets only three values that the text does not name; the others stay as they were
        (parseArgs of c10/cuda/CUDAAllocatorConfig.cpp at v2.9.1).

        Raises:
            UsageError: The text is one that torch refuses.
        """
        values: dict[str, Any] = {
            "conf": conf,
            "max_split_size": None,
            "garbage_collection_threshold": 0.0,
            "roundup_power2_divisions": NO_DIVISIONS,
        }
        rules = rules_for(release)
        for key, value in tokens_of(conf):
            if key in NO_EFFECT:
                NO_EFFECT[key](key, value)
                continue
            if key == "backend":
                _check_backend(value)
                continue
            reader = _READERS.get(key)
            if reader is None:
                raise UsageError(
                    f"torch's allocator has no setting {quoted(key)}. "
                    f"Known here: {', '.join(sorted(_READERS))}."
                )
            name, read = reader
            values[name] = read(key, value, rules)
        if not rules.has_non_split_rounding:
            values.pop("max_non_split_rounding", None)
        if not rules.has_large_segment_size:
            values.pop("large_segment_size", None)
        if not rules.rejects:
            values.pop("throw_on_cudamalloc_oom", None)
        return replace(self, **values)


def conf_of_environment() -> str:
    """Return the settings text from the environment.

    PYTORCH_CUDA_ALLOC_CONF wins over PYTORCH_ALLOC_CONF, as in torch.
    """
    return os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF", "")


def _check_backend(value: Value) -> None:
    if value != "native":
        raise UsageError(
            f"backend:{value} is another allocator with other rules; only native is simulated."
        )


def _split_size(key: str, value: Value, rules: Rules) -> int:
    return mib_of(key, value, least=rules.least_max_split_mib) * MIB


def _non_split(key: str, value: Value, rules: Rules) -> int:
    return mib_of(key, value, least=rules.least_max_split_mib) * MIB


def _segment_size(key: str, value: Value, rules: Rules) -> int:
    del rules
    return mib_of(key, value, least=20) * MIB


def _threshold(key: str, value: Value, rules: Rules) -> float:
    del rules
    return fraction_of(key, value, ends_allowed=False)


def _fraction(key: str, value: Value, rules: Rules) -> float:
    del rules
    return fraction_of(key, value, ends_allowed=True)


def _flag(key: str, value: Value, rules: Rules) -> bool:
    del rules
    return flag_of(key, value)


def _divisions(key: str, value: Value, rules: Rules) -> tuple[int, ...]:
    return divisions_of(key, value, last_key_fills_itself=rules.last_key_fills_itself)


_READERS: dict[str, tuple[str, Callable[[str, Value, Rules], Any]]] = {
    "max_split_size_mb": ("max_split_size", _split_size),
    "max_non_split_rounding_mb": ("max_non_split_rounding", _non_split),
    "garbage_collection_threshold": ("garbage_collection_threshold", _threshold),
    "expandable_segments": ("expandable_segments", _flag),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "large_segment_size_mb": ("large_segment_size", _segment_size),
    "per_process_memory_fraction": ("per_process_memory_fraction", _fraction),
    "throw_on_cudamalloc_oom": ("throw_on_cudamalloc_oom", _flag),
}
