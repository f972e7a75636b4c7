"""Launches of Triton kernels: host code runs, kernels do not.

What a program allocates to launch is Python: hooks, heuristics, the tuner with its buffer for a
cold cache, the computation of a grid. All of that runs as on a card. A kernel takes no memory but
that of its arguments, and scratch memory from an allocator that the program has set.

https://github.com/triton-lang/triton/blob/v3.7.1/python/triton/runtime/jit.py: JITFunction.run
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.dispatch.card_mode import CardMode
from nbmem.virtual.patches.patcher import Patch
from nbmem.virtual.patches.triton.compiled_kernels import (
    MOST_THREADS,
    LazyKernel,
    Scratch,
    ScratchLauncher,
    may_take_scratch,
    register_usage,
    take_scratch,
    without_memory,
)
from nbmem.virtual.warnings import TRITON

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine

COLD_CACHE = 256 << 20
"""Bytes that a benchmark writes between two launches, so that nothing is in the card's cache:
triton/backends/nvidia/driver.py: get_empty_cache_for_benchmark."""
ONE_TURN = 1000.0
"""Milliseconds of every launch: a benchmark of a given time then runs it once."""


class TritonEvent:
    """A CUDA event of a benchmark, which holds no time."""

    def __init__(self, **options: Any) -> None:
        del options

    def record(self, stream: Any = None) -> None:
        """Do nothing, since times are not known."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return a time so long that a benchmark launches only once."""
        del end_event
        return ONE_TURN


class TritonInterface:
    """The device interface of benchmarks: torch.cuda with other events."""

    Event = TritonEvent

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


class NullCublasLt:
    """A replacement of Triton's binding to cuBLASLt.

    What it writes is not known. The caller gives it a workspace.
    """

    def __init__(self, workspace: torch.Tensor, launched: Callable[[Iterable[Any]], None]) -> None:
        self._workspace = workspace
        self._launched = launched

    def __getattr__(self, name: str) -> Any:
        return lambda *values: self._launched(values)


class TritonDriver:
    """The driver `triton.runtime.driver.active` of a virtual card."""

    def __init__(self, machine: Machine, launched: Callable[[Iterable[Any]], None]) -> None:
        self._machine = machine
        self._launched = launched

    def launcher_cls(self, source: Any, metadata: Any) -> ScratchLauncher:
        """Return the launcher of a compiled kernel."""
        del source
        return ScratchLauncher(metadata, self._launched)

    def load_binary(
        self, name: str, kernel: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Return a kernel's handles, registers, spills and threads.

        In order: the handles of the module and of the function, the registers and spilled registers
        of a thread, the most threads of a block.
        """
        del shared, device
        return (1, 1, *register_usage(name, kernel), MOST_THREADS)

    def get_active_torch_device(self) -> torch.device:
        """Return the current card as a device."""
        return torch.device("cuda", self.get_current_device())

    def get_current_device(self) -> int:
        """Return the index of the current card."""
        return self._machine.current.index

    def set_current_device(self, device: int) -> None:
        """Make another card the current one."""
        torch.cuda.set_device(device)

    def get_current_stream(self, device: int | None = None) -> int:
        """Return the handle of this thread's stream."""
        return self._machine.gpu(device).stream.handle

    def get_current_target(self) -> Any:
        """Return the target that kernels are compiled for."""
        compiler = sys.modules["triton.backends.compiler"]
        major, minor = self._machine.current.card.capability
        return compiler.GPUTarget("cuda", 10 * major + minor, 32)

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        """Return a card's compute capability."""
        return self._machine.gpu(device).card.capability

    def get_device_interface(self) -> TritonInterface:
        """Return the interface by which a benchmark waits and takes times."""
        return TritonInterface()

    def get_benchmarker(self) -> Any:
        """Return the function that a tuner measures with."""
        return importlib.import_module("triton.testing").do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """Return the buffer that a benchmark writes to clear the cache.

        It is live as long as the benchmark.
        """
        return torch.empty(COLD_CACHE // 4, dtype=torch.int, device=self.get_active_torch_device())

    def clear_cache(self, cache: torch.Tensor) -> None:
        """Write the buffer, so that nothing else is in the card's cache."""
        cache.zero_()

    @property
    def utils(self) -> Any:
        """The driver itself, which has the few functions that are called."""
        return self

    def get_device_properties(self, device: int | None = None) -> dict[str, int]:
        """Return the properties of a card that launches are sized by."""
        card = self._machine.gpu(device).card
        return {
            "max_shared_mem": card.multiprocessor.shared_bytes,
            "max_num_regs": 65536,
            "multiprocessor_count": card.processors,
            "warpSize": 32,
            # An H100's: a tuner estimates with them which configurations are worth a try.
            "mem_clock_rate": 2_619_000,
            "mem_bus_width": 5120,
        }


def triton_patches(mode: CardMode, machine: Machine) -> list[Patch]:
    """Return patches of Triton's launches and of its driver.

    torch has imported Triton by now, if it is installed. Empty without it.
    """
    jit = sys.modules.get("triton.runtime.jit")
    config = sys.modules.get("triton.runtime.driver")
    if jit is None or config is None:
        return []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> LazyKernel:
        for hook in self.pre_run_hooks:
            hook(*args, **options)
        names = self.signature.parameters
        asked = {name: value for name, value in options.items() if name in names}
        bound = self.signature.bind(*args, **asked)
        bound.apply_defaults()
        kernel = LazyKernel(self.__name__, compiled(self, args, options), loaded=not warmup)
        if not warmup:
            sizes = grid(dict(bound.arguments)) if callable(grid) else grid
            launched(bound.arguments.values())
            if may_take_scratch(self):
                metadata = scratch.of(self, kernel, bound.arguments.values())
                take_scratch(metadata, sizes, driver.get_current_stream())
        return kernel

    def print_text(text: str) -> None:
        machine.current.note(text)

    def launched(values: Iterable[Any]) -> None:
        for place, value in enumerate(values):
            _launched_with(mode, place, value)
        machine.current.launch_unseen()
        machine.current.note(TRITON)

    def compiled(self: Any, args: Any, options: dict[str, Any]) -> Callable[[], Any]:
        lighter = [without_memory(value) for value in args]
        named = {name: without_memory(value) for name, value in options.items()}

        def compile_it() -> Any:
            hooks, self.pre_run_hooks = self.pre_run_hooks, []
            try:
                return original_run(self, *lighter, grid=None, warmup=True, **named)
            finally:
                self.pre_run_hooks = hooks

        return compile_it

    original_run = jit.JITFunction.run
    _teach_wrapped_launches()
    driver = TritonDriver(machine, launched)
    scratch = Scratch(print_text)
    return [
        Patch(jit.JITFunction, "run", run),
        Patch(config.DriverConfig, "active", property(lambda _self: driver)),
        *_blas_patches(launched),
    ]


def _blas_patches(launched: Callable[[Iterable[Any]], None]) -> list[Patch]:
    library = sys.modules.get("triton._C.libtriton")
    cublas = getattr(getattr(library, "nvidia", None), "cublas", None)
    if cublas is None:
        return []
    return [Patch(cublas, "CublasLt", lambda workspace: NullCublasLt(workspace, launched))]


def _teach_wrapped_launches() -> None:
    """Register launches by torch.library.wrap_triton for the card.

    The registration stays for the life of the process.
    """
    from torch._higher_order_ops import triton_kernel_wrap

    wrapped = triton_kernel_wrap.triton_kernel_wrapper_mutation
    if CardMode in wrapped.python_key_table:
        return

    def launch(mode: CardMode, **options: Any) -> None:
        with mode:
            triton_kernel_wrap.triton_kernel_wrapper_mutation_dense(**options)

    wrapped.py_impl(CardMode)(launch)


def _launched_with(mode: CardMode, place: int, value: Any) -> None:
    """Forget a launch argument's values, which the kernel may write.

    Raises:
        ValueError: The kernel cannot reach the argument's memory; the message is Triton's.
    """
    if isinstance(value, (list, tuple)):
        for item in value:
            _launched_with(mode, place, item)
        return
    tensor = value if isinstance(value, torch.Tensor) else getattr(value, "base", None)
    if is_virtual(tensor):
        mode.values.forget(tensor)
    elif isinstance(tensor, torch.Tensor) and _is_out_of_reach(tensor):
        raise ValueError(
            f"Pointer argument (at {place}) cannot be accessed from Triton (cpu tensor?)"
        )


def _is_out_of_reach(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() > 0 and not tensor.is_pinned()
