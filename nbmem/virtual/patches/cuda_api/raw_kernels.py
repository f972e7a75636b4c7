"""Kernels that a program compiles from C++ with torch.cuda.

torch's host code runs, the kernels do not. Where NVRTC is installed, it compiles them, so that what
it refuses is refused; nothing is launched.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/cuda/_utils.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.warnings import RAW_KERNELS

if TYPE_CHECKING:
    from nbmem.virtual.dispatch.card_mode import CardMode
    from nbmem.virtual.hardware.machine import Machine


class NullDriver:
    """A libcuda whose functions all succeed and do nothing.

    So modules load, functions are found, and launches succeed.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu"):
            return lambda *_args: 0
        raise AttributeError(name)


def raw_kernel_patches(mode: CardMode, machine: Machine) -> list[Patch]:
    """Return patches of the compiler and driver for raw kernels.

    They are behind `torch.cuda._compile_kernel`. Empty before torch 2.8.
    """
    library = torch.cuda._utils
    kernel = getattr(library, "_CudaKernel", None)
    if kernel is None:
        return []
    original_compile: Any = library._nvrtc_compile
    original_launch: Any = kernel.__call__

    def compiled(source: str, name: str, *args: Any, **kwargs: Any) -> tuple[bytes, str]:
        try:
            made: tuple[bytes, str] = original_compile(source, name, *args, **kwargs)
        except OSError:  # no NVRTC, or no headers
            return b"", name
        return made

    def launch(
        self: Any, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), args: Any = None, **rest: Any
    ) -> None:
        original_launch(self, grid, block, args, **rest)
        for tensor in args or ():
            if is_virtual(tensor):
                mode.values.forget(tensor)
        machine.current.launch_unseen()
        machine.current.note(RAW_KERNELS)

    driver = NullDriver()
    names = {
        "_nvrtc_compile": compiled,
        "_get_gpu_runtime_library": lambda: driver,
        "_get_cuda_library": lambda: driver,
    }
    return [*patches_of(library, names, only_existing=True), Patch(kernel, "__call__", launch)]
