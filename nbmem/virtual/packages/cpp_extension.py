"""torch's compiler of extensions: CUDA sources are refused at once.

Compiling them takes minutes. Their kernels launch through the CUDA runtime, which no virtual card
answers, and nothing shows what they allocate. Sources without CUDA are compiled as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import PurePath
from typing import Any

from nbmem.virtual import current_machine
from nbmem.virtual.kernel_rules import KernelRules
from nbmem.virtual.warnings import uncompiled

_CUDA = (".cu", ".cuh")


def refuse_cuda(compile_extension: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `_jit_compile` to refuse CUDA sources while a card is active."""

    @wraps(compile_extension)
    def compiled(name: str, sources: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        machine = current_machine.machine()
        if machine is not None and any(PurePath(one).suffix in _CUDA for one in sources):
            text = uncompiled(name)
            machine.current.note(text)
            raise RuntimeError(text)
        return compile_extension(name, sources, *args, **kwargs)

    return compiled


RULES = KernelRules(replaced={"torch.utils.cpp_extension": {"_jit_compile": refuse_cuda}})
