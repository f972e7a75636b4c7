"""Kernel rules that nbmem brings for packages without their own.

Each package has one file with the host code of its compiled parts.
"""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from nbmem.virtual.kernel_rules import GROUP, KernelRules

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OWN = (
    "bitsandbytes",
    "causal_conv1d",
    "cpp_extension",
    "deepspeed",
    "flash_attn",
    "selective_scan",
    "torchvision",
)


@functools.cache
def all_rules() -> tuple[tuple[tuple[str, KernelRules], ...], tuple[str, ...]]:
    """Return all rules by provider, and messages on those that failed.

    A package's own rules come after nbmem's.

    They are read once: what is installed later counts from the next start of Python on.
    """
    found = [(f"nbmem's {name}", _own(name)) for name in OWN]
    failed = []
    for entry in entry_points(group=GROUP):
        try:
            rules = entry.load()
            if not isinstance(rules, KernelRules):
                raise TypeError(  # noqa: TRY301 - reported like all other errors
                    f"{entry.value} is {_kind(rules)}, not a nbmem.virtual.kernel_rules.KernelRules"
                )
        except (Exception, SystemExit) as err:  # noqa: BLE001 - the module may raise anything
            failed.append(unusable(_origin_of(entry), err))
        else:
            found.append((_origin_of(entry), rules))
    return tuple(found), tuple(failed)


def _own(name: str) -> KernelRules:
    module = importlib.import_module(f"{__name__}.{name}")
    rules: KernelRules = module.RULES
    return rules


def _origin_of(entry: EntryPoint) -> str:
    return entry.name if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def unusable(who: str, err: BaseException) -> str:
    """Format the note on rules that cannot be loaded."""
    return (
        f"The rules that {who} brings for virtual GPUs cannot be used "
        f"({type(err).__name__}: {str(err)[:200]}): its kernels are answered as if it had none. "
        "Another version of it may have them right."
    )
