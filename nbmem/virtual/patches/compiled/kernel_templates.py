"""Inductor's kernel templates (flex_attention), timed but not run.

A template is filled in once for each choice, to see which buffers it reads, and imported so that it
can be timed. The text imports Triton, which need not be installed. Where there are several choices,
tensors of the operator's sizes are made on the card, and each choice is timed on them.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/select_algorithm.py

Known limit: which choice wins is not known; the first one is taken, as none is faster here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch._inductor import select_algorithm

from nbmem.virtual.patches.compiled.triton_kernels import timed_on_card
from nbmem.virtual.patches.patcher import Patch, patches_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nbmem.virtual.hardware.machine import Machine


def template_patches(
    machine: Machine, on_card: Callable[[], AbstractContextManager[None]]
) -> list[Patch]:
    """Return patches of the loading and timing of templates.

    Args:
        machine: The cards.
        on_card: While entered, what is made is made on the card and is not fake.
    """
    selector: Any = select_algorithm.AlgorithmSelectorCache
    original_benchmark = selector.benchmark_in_current_process

    def benchmark_choices(*args: Any, **options: Any) -> Any:
        with on_card():
            return original_benchmark(*args, **options)

    def benchmark_one(_self: Any, *_tensors: Any, out: Any) -> float:
        del out
        return timed_on_card(machine, lambda: None)

    return [
        Patch(select_algorithm, "PyCodeCache", _template_cache()),
        Patch(selector, "benchmark_in_current_process", benchmark_choices),
        # They print times, which are not known.
        *patches_of(selector, {"log_results": _ignore}, only_existing=True),
        *patches_of(select_algorithm, {"_log_autotune_choices_stats": _ignore}, only_existing=True),
        *patches_of(
            select_algorithm.TritonTemplateCaller,
            {"benchmark": benchmark_one, "precompile": lambda _self: None},
        ),
    ]


def _ignore(*_args: Any, **_options: Any) -> None:
    pass


def _template_cache() -> Any:
    """Return a loader of templates that imports none of them.

    The module that it returns is named after the template's file, and empty.
    """
    cache: Any = select_algorithm.PyCodeCache

    class TemplateCache(cache):
        """A code cache that writes a template and returns an empty module."""

        @classmethod
        def load(cls, source_code: str, extra: str = "", **_: Any) -> ModuleType:
            key, path = cache.write(source_code, extra)
            module = ModuleType(key)
            module.__file__ = path
            module.key = key  # type: ignore[attr-defined]
            return module

    return TemplateCache
