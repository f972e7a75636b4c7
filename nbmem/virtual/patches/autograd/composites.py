"""Composite operators of torch for which CUDA has another path.

In C++ a virtual tensor is on `lazy:0`, so these operators would take the path of other devices.
CUDA's path (`composite` of their record) is registered for CUDA's autograd key, which virtual
tensors have. The dispatch mode calls it where autograd does not run (inference_mode). Operators
that are a kernel on CUDA (`is_kernel`) bypass autograd, as they do there.

A build of torch without CUDA also composes operators that have a kernel on CUDA. Comparing the
registrations of both builds (`torch._C._dispatch_get_registrations_for_dispatch_key`) finds all of
them: in 2.13 `rms_norm`, `silu_backward` and `mish_backward`. The same function lists what autocast
casts.
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
    """Run torch's own as_strided_ kernel on a virtual tensor.

    Every backend but XLA and that of lazy tensors has this kernel. C++ calls it when
    functionalization repeats an in-place view on its wrapper. An example is
    `adaptive_avg_pool2d(x, 1)` of an image in channels last.
    """
    return _STRIDED._op_dk(torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional, *args)


class CompositeKernels:
    """CUDA's composite operators, registered while a card is active."""

    def __init__(self, autocast: AutocastKernels) -> None:
        self._autocast = autocast
        self._library: Any = None

    def register(self) -> None:
        """Register the kernels."""
        self._library = torch.library.Library("aten", "IMPL")
        for operator, kernel in composites():
            implement(self._library, operator, kernel, _KEY)
            around = self._autocast.wrap_for_subclasses(operator, kernel)
            implement(self._library, operator, around, _KEY_AROUND)
        for name in kernels():
            # "CUDA" is for functionalization, which decomposes what has no kernel there.
            keys = (_KEY_AROUND,) if has_cuda_kernel(name) else (_KEY_AROUND, _KEY, "CUDA")
            for key in keys:
                self._library.impl(name, torch.library.fallthrough_kernel, key)
        self._library.impl("as_strided_", _as_strided, "Lazy")

    def unregister(self) -> None:
        """Unregister the kernels."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
