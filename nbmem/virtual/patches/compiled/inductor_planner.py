"""Inductor on a virtual card: it plans, but compiles no kernel.

No kernel is run. Nothing of Inductor outlasts the card, unless plans are saved on request
(plan_cache.py). Its wrappers are in a folder of their own, its caches are off, and its facts
about a device are dropped before and after.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor

Known limit: where Inductor times two paths on the card (padded matrix products), both take their
memory, and the plain one is taken. Of max-autotune's kernels for products and convolutions, those
of cuBLAS and cuDNN are taken, and no other one is tried.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import unset_fake_temporarily
from torch.overrides import TorchFunctionMode

from nbmem.core.runtime.warning_filter import suppress_warnings
from nbmem.virtual.devices import CPU
from nbmem.virtual.patches.compiled import plan_cache
from nbmem.virtual.patches.compiled.plan_cache import PlanCache
from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.tensors.shapes import spec_of

if TYPE_CHECKING:
    from nbmem.virtual.dispatch.card_mode import CardMode
    from nbmem.virtual.hardware.machine import Machine

_SETTINGS = {
    "compile_threads": 1,
    "force_disable_caches": True,
    "size_asserts": False,
    "alignment_asserts": False,
    "scalar_asserts": False,
    "max_autotune_gemm_backends": "ATEN",
    "max_autotune_conv_backends": "ATEN",
}
_AUTOGRAD_SETTINGS = {"force_non_lazy_backward_lowering": True}
"""A region's backward is planned with it: later the program's settings would apply."""


class InductorPlanner:
    """Inductor on the cards, from the first region that is compiled on.

    Args:
        mode: The mode of the cards.
        machine: The cards.
        keep: Folder of plans that other activations reuse; None to save none.
    """

    def __init__(self, mode: CardMode, machine: Machine, *, keep: str | None) -> None:
        self._mode = mode
        self._machine = machine
        self._keeping = None if keep is None else PlanCache(machine, keep)
        self._folder: _PlansFolder | None = None

    def begin(self) -> list[Patch]:
        """Import Inductor, which takes seconds, and return its patches."""
        # In a thread of its own: an import retains the frames below it, with all their tensors.
        thread = threading.Thread(target=_import)
        thread.start()
        thread.join()
        self._folder = _PlansFolder()
        _forget_devices()
        return self._patches()

    def settle(self) -> None:
        """End the recording of plans that are kept.

        Called when what they left behind has been collected.
        """
        if self._keeping is not None:
            self._keeping.settle()

    def end(self) -> None:
        """Forget everything that was planned."""
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
            _forget_devices()
            torch._dynamo.reset()

    @contextlib.contextmanager
    def planning(self) -> Iterator[None]:
        """Apply Inductor's settings and its folder while a region is planned."""
        from torch._functorch import config as functorch
        from torch._inductor import config as inductor

        assert self._folder is not None
        name = "TORCHINDUCTOR_CACHE_DIR"
        before = os.environ.get(name)
        os.environ[name] = self._folder.name
        settings, autograd = dict(_SETTINGS), dict(_AUTOGRAD_SETTINGS)
        with contextlib.ExitStack() as stack:
            if self._keeping is not None:
                stack.enter_context(self._keeping.planning())
                settings.update(plan_cache.SETTINGS)
                autograd.update(plan_cache.AUTOGRAD_SETTINGS)
            stack.callback(_restore, name, before)
            stack.enter_context(inductor.patch(settings))
            stack.enter_context(functorch.patch(autograd))
            yield

    def _patches(self) -> list[Patch]:
        from torch._inductor import async_compile, compile_fx, config, constant_folding, scheduler
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen
        from torch._inductor.fx_passes import pad_mm
        from torch._inductor.runtime.benchmarking import InductorBenchmarker
        from torch.utils import _triton

        from nbmem.virtual.patches.compiled.buffer_annotations import buffer_comments_patch
        from nbmem.virtual.patches.compiled.inductor_shortcuts import shortcut_patches
        from nbmem.virtual.patches.compiled.kernel_templates import template_patches
        from nbmem.virtual.patches.compiled.triton_kernels import PlannedKernel, timed_on_card

        mode, machine = self._mode, self._machine
        timed: set[str] = set()
        folder: Any = constant_folding.ConstantFolder
        original_fold = folder.run

        def fold(self: Any, *args: Any, **kwargs: Any) -> Any:
            with mode:  # it computes constants on the card
                return original_fold(self, *args, **kwargs)

        @contextlib.contextmanager
        def on_card() -> Iterator[None]:
            with unset_fake_temporarily(), mode, _RandnLikeMode():
                yield

        def benchmark(_self: Any, act: Callable[[], Any], **_: Any) -> float:
            return timed_on_card(machine, act)

        def kernel(_self: Any, _name: str, source: str, *_: Any, **__: Any) -> PlannedKernel:
            was_timed = config.aot_inductor.package  # a package's are timed when it is compiled
            return PlannedKernel(mode, source, timed, tunes=not was_timed)

        return [
            buffer_comments_patch(),
            *shortcut_patches(),
            *(self._keeping.patches() if self._keeping is not None else []),
            Patch(compile_fx, "fresh_cache", _fresh_cache),
            *template_patches(machine, on_card),
            Patch(scheduler, "has_triton", lambda: True),
            Patch(_triton, "triton_hash_with_backend", lambda: ""),
            Patch(PythonWrapperCodegen, "write_triton_header_once", _import_stream),
            Patch(async_compile.AsyncCompile, "triton", kernel),
            Patch(folder, "run", fold),
            # It times a product beside a padded one, on tensors that it makes on the card.
            Patch(pad_mm, "has_triton", lambda: True),
            Patch(pad_mm, "no_dispatch", on_card),
            Patch(InductorBenchmarker, "benchmark_gpu", benchmark),
            *_buffers(mode, machine),
        ]


def _buffers(mode: CardMode, machine: Machine) -> list[Patch]:
    """Return patches of the functions that allocate a wrapper's buffers."""

    def empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        spec = spec_of(tuple(size), dtype, 0, tuple(stride))
        return mode.allocate(machine.current, (spec,))[0]

    def pinned(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        made = torch.empty_strided(size, stride, dtype=dtype, device=CPU)
        return cast("torch.Tensor", mode.pinned.pin(made))

    names = {"_empty_strided_cuda": empty, "_empty_strided_cpu_pinned": pinned}
    return patches_of(torch._C._dynamo.guards, names)


class _RandnLikeMode(TorchFunctionMode):
    """A mode in which randn_like() of a fake tensor is on its card.

    torch does the same where its dispatch is off. A product that is timed padded a second time has
    its bias made like this.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        like = args[0] if args else None
        if getattr(func, "__name__", "") == "randn_like" and isinstance(like, FakeTensor):
            return torch.randn(like.size(), dtype=like.dtype, device=like.device)
        return func(*args, **(kwargs or {}))


class _PlansFolder:
    """A temporary folder, removed at the process's end at the latest.

    Errors of its removal are ignored.
    """

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="nbmem-compiled-")
        self.remove = weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)


def _restore(name: str, before: str | None) -> None:
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before


def _import() -> None:
    from torch._inductor import config

    # It would start worker processes, and warns of TorchScript.
    with suppress_warnings(), config.patch(compile_threads=1):
        importlib.import_module("torch._inductor.compile_fx")


def _import_stream(wrapper: Any) -> None:
    """Write the imports of a wrapper without Triton.

    Triton need not be installed.
    """
    from torch._inductor.virtualized import V

    wrapper.imports.writeline(V.graph.device_ops.import_get_raw_stream_as("get_raw_stream"))


@contextlib.contextmanager
def _fresh_cache(**_: Any) -> Iterator[None]:
    """Clear Inductor's caches before and after a `with` block.

    Inductor's own function also makes a folder. It would retain the folder, and print that, where a
    plan fails.
    """
    from torch._inductor import utils

    utils.clear_caches()
    try:
        yield
    finally:
        utils.clear_caches()


def _forget_devices() -> None:
    """Clear what Inductor caches of a device by its number.

    The next card has the same number.
    """
    from torch._inductor import fx_passes, utils
    from torch._inductor.runtime.hints import DeviceProperties

    utils.clear_caches()
    for cached in (
        DeviceProperties.create,
        utils.is_big_gpu,
        utils.get_max_num_sms,
        utils.get_gpu_dram_gbps,
        utils.get_gpu_shared_memory,
        utils.get_device_tflops,
        fx_passes.joint_graph.lazy_init,
    ):
        clear = getattr(cached, "cache_clear", None)
        if clear is not None:
            clear()
