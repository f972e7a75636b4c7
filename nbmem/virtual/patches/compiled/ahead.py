"""AOTInductor on a virtual card: one sentence, for what it makes is code of a card's own compiler.

It writes C++ and compiles it and its kernels with CUDA's compiler before anything runs, so no plan
is left that could run without them.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/__init__.py
"""

from __future__ import annotations

import sys
from typing import Any

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch, wanted
from nbmem.virtual.tensors.calls import tensors_in

REFUSED = (
    "AOTInductor compiles a program into machine code for its card, and a virtual GPU runs none: "
    "nothing is packaged here. What the program takes is seen by calling it as it is "
    "(`program.module()(*inputs)`), or compiled (`torch.compile(program.module())`), which is "
    "planned as Inductor plans it."
)


def ahead_of_time() -> list[Patch]:
    """What refuses a program on a virtual card; Inductor's package is not imported for it."""
    package: Any = sys.modules.get("torch._inductor")
    true_compile: Any = getattr(package, "aot_compile", None)
    if true_compile is None:
        return []

    def aot_compile(gm: Any, args: Any, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        held = [*gm.parameters(), *gm.buffers(), *tensors_in((args, kwargs), {})]
        if any(is_virtual(tensor) for tensor in held):
            raise NotImplementedError(REFUSED)
        return true_compile(gm, args, kwargs, *more, **options)

    return wanted(package, {"aot_compile": aot_compile})
