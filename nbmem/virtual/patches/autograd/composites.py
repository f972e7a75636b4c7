"""Composite operators of torch for which CUDA has another path: C++ is told of it.

To C++ a virtual tensor lives on `lazy:0`, so these operators would take the path of other devices.
What CUDA makes of them (`composite` of their record) is registered for CUDA's autograd key, which
virtual tensors have; the dispatch mode asks for it where autograd is out of the way
(inference_mode). Those that are a kernel on CUDA (`is_kernel`) pass autograd by, as they do there.

A build of torch without CUDA also composes what CUDA has a kernel for. Comparing the registrations
of both builds (`torch._C._dispatch_get_registrations_for_dispatch_key`) finds all of them: in 2.13
`rms_norm`, `silu_backward` and `mish_backward`. The same function says what autocast casts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operators.table import composites, has_cuda_kernel, kernels
from nbmem.virtual.patches.dispatcher import implement

if TYPE_CHECKING:
    from nbmem.virtual.patches.autograd.autocast import AutocastKernels

_KEY = "AutogradCUDA"
_KEY_AROUND = "AutogradLazy"
"""Of a subclass around a virtual tensor (DTensor), whose C++ device gives its keys."""


_STRIDED = torch.ops.aten.as_strided_.default


def _as_strided(*args: Any) -> Any:
    """Torch's own kernel, which is every backend's but XLA's and that of lazy tensors.

    Where functionalization repeats on its wrapper what a view did in place, C++ asks for it, as in
    `adaptive_avg_pool2d(x, 1)` of an image in channels last.
    """
    return _STRIDED._op_dk(torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional, *args)


class Composites:
    """The registered ones."""

    def __init__(self, autocast: AutocastKernels) -> None:
        self._autocast = autocast
        self._library: Any = None

    def register(self) -> None:
        """Put the kernels in place."""
        self._library = torch.library.Library("aten", "IMPL")
        for operator, kernel in composites():
            implement(self._library, operator, kernel, _KEY)
            around = self._autocast.around(operator, kernel)
            implement(self._library, operator, around, _KEY_AROUND)
        for name in kernels():
            # The last for who asks whether CUDA has one: functionalization composes what has none.
            keys = (_KEY_AROUND,) if has_cuda_kernel(name) else (_KEY_AROUND, _KEY, "CUDA")
            for key in keys:
                self._library.impl(name, torch.library.fallthrough_kernel, key)
        self._library.impl("as_strided_", _as_strided, "Lazy")

    def unregister(self) -> None:
        """Take them away."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
