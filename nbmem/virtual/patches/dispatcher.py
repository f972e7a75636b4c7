"""Registration of nbmem's kernels in torch's dispatcher."""

from __future__ import annotations

from typing import Any

from nbmem.core.runtime.warning_filter import suppress_warnings
from nbmem.virtual.dispatch.tracing import without_jit_trace


def implement(library: Any, operator: Any, kernel: Any, key: str) -> None:
    """Register a kernel, over torch's own if there is one."""
    kernel = without_jit_trace(kernel)
    schema = operator._schema
    name = schema.name.split("::")[1]
    if schema.overload_name:
        name = f"{name}.{schema.overload_name}"
    # On CUDA builds torch warns that its own kernel is overridden: that is the intention.
    with suppress_warnings():
        try:
            library.impl(name, kernel, key, allow_override=True)
        except TypeError:  # Before torch 2.8 overriding needs no permission.
            library.impl(name, kernel, key)
