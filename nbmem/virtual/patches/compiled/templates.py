"""Inductor's templates of kernels (flex_attention's): their text is written and never imported.

A template is filled in once to see which buffers it reads, and imported for the sake of those who
would time it; the text imports Triton, which need not be there.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/select_algorithm.py
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch._inductor import select_algorithm

from nbmem.virtual.patches.patcher import Patch


def unimported() -> Patch:
    """What a template is loaded by: a module that is named after its file, and empty."""
    cache: Any = select_algorithm.PyCodeCache

    class Written(cache):
        """Where a template's text goes."""

        @classmethod
        def load(cls, source_code: str, extra: str = "", **_: Any) -> ModuleType:
            key, path = cache.write(source_code, extra)
            module = ModuleType(key)
            module.__file__ = path
            module.key = key  # type: ignore[attr-defined]
            return module

    return Patch(select_algorithm, "PyCodeCache", Written)
