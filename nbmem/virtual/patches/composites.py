"""Composite operators of torch for which CUDA has another path: C++ is told of it.

To C++ a virtual tensor lives on `lazy:0`, so these operators would take the path of other devices.
What CUDA makes of them (`composite` of their record) is registered for CUDA's autograd key, which
virtual tensors have; the dispatch mode asks for it where autograd is out of the way
(inference_mode).

A build of torch without CUDA also composes what CUDA has a kernel for. Comparing the registrations
of both builds (`torch._C._dispatch_get_registrations_for_dispatch_key`) finds all of them: in 2.13
it is `rms_norm` alone. The same function says what autocast casts.
"""

from __future__ import annotations

from typing import Any

import torch

from nbmem.virtual.operators.table import composites
from nbmem.virtual.patches.kernels import implement
from nbmem.virtual.tensors.calls import operator_of

_CUDA = torch._C.DispatchKey.CUDA
KERNELS_OF_CUDA = ("silu_backward", "mish_backward")
"""Composite where a build has no kernel on CUDA, so that autograd would take them apart."""


class Composites:
    """The registered ones."""

    def __init__(self) -> None:
        self._library: Any = None

    def register(self) -> None:
        """Put the kernels in place."""
        self._library = torch.library.Library("aten", "IMPL")
        for operator, kernel in composites():
            implement(self._library, operator, kernel, "AutogradCUDA")
        for operator in map(operator_of, KERNELS_OF_CUDA):
            if operator is not None and not operator.has_kernel_for_dispatch_key(_CUDA):
                name = operator._schema.name
                self._library.impl(name, torch.library.fallthrough_kernel, "AutogradCUDA")

    def unregister(self) -> None:
        """Take them away."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
