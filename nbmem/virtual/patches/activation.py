"""Activation and deactivation of virtual cards."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nbmem.core.errors import UsageError
from nbmem.core.runtime.garbage_collector import rare_collections
from nbmem.virtual import current_machine
from nbmem.virtual.dispatch.card_mode import CardMode
from nbmem.virtual.hardware.current_stream import CurrentStream
from nbmem.virtual.hardware.machine import Machine
from nbmem.virtual.hardware.nvml import functions_of, real_module, stand_in_module
from nbmem.virtual.patches.autograd.autocast import AutocastKernels
from nbmem.virtual.patches.autograd.composites import CompositeKernels
from nbmem.virtual.patches.autograd.engine import engine_patches
from nbmem.virtual.patches.autograd.higher_order import higher_order_patches
from nbmem.virtual.patches.autograd.thread_modes import remove_mode, thread_patches
from nbmem.virtual.patches.autograd.tracebacks import traceback_patches
from nbmem.virtual.patches.autograd.tracers import tracing_patches
from nbmem.virtual.patches.compiled.compiler import Compiler
from nbmem.virtual.patches.compiled.flex_attention import flex_patches
from nbmem.virtual.patches.cuda_api.accelerator import accelerator_patches
from nbmem.virtual.patches.cuda_api.cudart import cuda_patches
from nbmem.virtual.patches.cuda_api.generators import generator_patches
from nbmem.virtual.patches.cuda_api.jiterator import jiterator_patches
from nbmem.virtual.patches.cuda_api.libraries import library_patches
from nbmem.virtual.patches.cuda_api.profiler import profiling_patches
from nbmem.virtual.patches.cuda_api.random_states import register_random_wrappers
from nbmem.virtual.patches.cuda_api.raw_kernels import raw_kernel_patches
from nbmem.virtual.patches.distributed.data_parallel import data_parallel_patches
from nbmem.virtual.patches.distributed.ddp import ddp_patches
from nbmem.virtual.patches.distributed.spawn import RankState, leave_world, process_patches
from nbmem.virtual.patches.packages import RulesFinder
from nbmem.virtual.patches.patcher import Patch, Patches, patches_of
from nbmem.virtual.patches.tensor_api.assert_close import comparison_patches
from nbmem.virtual.patches.tensor_api.causal_masks import mask_patches
from nbmem.virtual.patches.tensor_api.factories import factory_patches
from nbmem.virtual.patches.tensor_api.indexing import indexing_patches
from nbmem.virtual.patches.tensor_api.init import init_patches
from nbmem.virtual.patches.tensor_api.legacy_types import legacy_patches
from nbmem.virtual.patches.tensor_api.sparse_constructors import layout_patches
from nbmem.virtual.patches.tensor_api.storages import storage_patches
from nbmem.virtual.patches.tensor_api.tensor_attributes import printing_patches, tensor_patches
from nbmem.virtual.patches.triton.launches import triton_patches
from nbmem.virtual.tensors.leaf_streams import note_first_stream

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card


class Activation:
    """Patches, kernels and modes that are in place while cards are active."""

    def __init__(self, machine: Machine, *, defer: bool, eager: bool, keep: str | None) -> None:
        self.machine = machine
        self.mode = CardMode(machine, defer=defer)
        self.patches = Patches()
        self._autocast = AutocastKernels()
        self._composites = CompositeKernels(self._autocast)
        self._compiler = Compiler(self.mode, machine, self.patches, eager=eager, keep=keep)
        self._no_pynvml = False
        self._packages = RulesFinder(machine)

    def begin(self) -> None:
        """Put everything in place, or nothing if one step fails."""
        try:
            self._packages.begin()
            self.patches.apply(self._all_patches())
            self._autocast.register()
            self._composites.register()
            register_random_wrappers()
            CurrentStream.before_first = staticmethod(note_first_stream)
            self.mode.__enter__()
        except BaseException:
            self.end()
            raise
        current_machine.set_machine(self.machine)
        self._packages.import_skipped_modules()

    def end(self) -> None:
        """Undo everything that `begin()` put in place."""
        leave_world()
        self._compiler.leave()
        current_machine.set_machine(None)
        remove_mode(self.mode)
        self._composites.unregister()
        self._autocast.unregister()
        self.patches.undo()
        self._packages.end()
        self._compiler.end()
        if self._no_pynvml:
            sys.modules.pop("pynvml", None)
        self.mode.machine = None
        RankState.apart = False
        RankState.patches.undo()
        for gpu in self.machine.gpus:
            gpu.dropout_state = None
            gpu.dnn.close()
        self.mode.storages.forget()
        self.mode.host.forget()

    def _all_patches(self) -> list[Patch]:
        return [
            *cuda_patches(self.machine, self.mode.pinned),
            *accelerator_patches(self.machine),
            *self._compiler.patches(),
            *tensor_patches(self.mode),
            *storage_patches(self.mode),
            *factory_patches(),
            *flex_patches(),
            *higher_order_patches(self.mode),
            *jiterator_patches(),
            *generator_patches(),
            *layout_patches(),
            *legacy_patches(),
            *library_patches(self.mode),
            *indexing_patches(),
            *init_patches(self.mode),
            *mask_patches(self.mode),
            *comparison_patches(self.mode),
            *data_parallel_patches(self.machine),
            *ddp_patches(self.machine),
            *printing_patches(self.mode),
            *process_patches(self.machine),
            *profiling_patches(),
            *engine_patches(),
            *thread_patches(self.mode),
            *tracing_patches(),
            *triton_patches(self.mode, self.machine),
            *raw_kernel_patches(self.mode, self.machine),
            *self._autocast.patches(),
            *self._nvml_patches(),
            *traceback_patches(),
        ]

    def _nvml_patches(self) -> list[Patch]:
        module = real_module()
        if module is None:
            sys.modules["pynvml"] = stand_in_module(self.machine)
            self._no_pynvml = True
            return []
        return patches_of(module, functions_of(self.machine, module.NVMLError))


_active: list[Activation] = []


def switch_on(  # noqa: PLR0913 - what a machine is made of
    cards: Sequence[Card],
    *,
    release: str | None,
    conf: str | None,
    other_processes: Mapping[int, int] | int | None,
    defer: bool,
    eager: bool,
    keep: str | None = None,
) -> Machine:
    """Make a machine of these cards the active one.

    Another active machine is switched off first.

    Raises:
        UsageError: A real CUDA context exists already.
    """
    switch_off()
    _refuse_real_context()
    # The first shape rule would import it. That import retains the frames that it finds on the
    # stack, with all their tensors, until the next garbage collection.
    # torch 2.6 makes tensors in it, and "cuda" may be the default.
    with torch.device("cpu"), rare_collections():
        importlib.import_module("torch._dynamo")
    # Imported once torch seems to be a build for CUDA, it would warn that there is no Triton.
    importlib.import_module("torch.utils.flop_counter")
    # Forward-mode derivatives are compiled from torch's own functions, not from the patched ones.
    importlib.import_module("torch._decomp.decompositions_for_jvp")
    if isinstance(other_processes, int):
        other_processes = {1: other_processes} if other_processes else {}
    machine = Machine(
        cards,
        release=release or torch.__version__.partition("+")[0],
        conf=conf,
        other_processes=other_processes,
    )
    activation = Activation(machine, defer=defer, eager=eager, keep=keep)
    activation.begin()
    _active.append(activation)
    return machine


def switch_off() -> None:
    """Deactivate the cards; nothing happens without an active one."""
    while _active:
        _active.pop().end()


def activation() -> Any:
    """Return the current activation, for tests; None without one."""
    return _active[-1] if _active else None


def _refuse_real_context() -> None:
    if torch.cuda.is_initialized():
        raise UsageError(
            "This process already uses a real GPU: a CUDA context exists, so a virtual one cannot "
            "take its place. Restart the kernel and activate the virtual GPU first."
        )
