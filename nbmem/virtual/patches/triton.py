"""Triton's launches: they pass, for a kernel takes no memory but that of its arguments."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.notes import TRITON
from nbmem.virtual.patches.patcher import Patch

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine
    from nbmem.virtual.operators.dispatch import CardMode


class TritonDriver:
    """What programs ask of `triton.runtime.driver.active` before they launch."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def get_active_torch_device(self) -> torch.device:
        """The card."""
        return torch.device("cuda", self.get_current_device())

    def get_current_device(self) -> int:
        """Its ordinal."""
        return self._machine.current.index

    def get_current_stream(self, device: int | None = None) -> int:
        """The handle of this thread's stream."""
        return self._machine.gpu(device).stream.handle

    def get_current_target(self) -> Any:
        """What kernels are compiled for."""
        compiler = sys.modules["triton.backends.compiler"]
        major, minor = self._machine.current.card.capability
        return compiler.GPUTarget("cuda", 10 * major + minor, 32)

    @property
    def utils(self) -> Any:
        """Itself, for the one question that is asked of it."""
        return self

    def get_device_properties(self, device: int | None = None) -> dict[str, int]:
        """What launches are sized by."""
        card = self._machine.gpu(device).card
        return {
            "max_shared_mem": card.multiprocessor.shared_bytes,
            "max_num_regs": 65536,
            "multiprocessor_count": card.processors,
            "warpSize": 32,
        }


def triton_patches(mode: CardMode, machine: Machine) -> list[Patch]:
    """The ways to launch a kernel; torch has imported Triton by now, if there is one."""
    jit = sys.modules.get("triton.runtime.jit")
    tuner = sys.modules.get("triton.runtime.autotuner")
    config = sys.modules.get("triton.runtime.driver")
    if jit is None or tuner is None or config is None:
        return []

    def passing(kind: Any) -> Patch:
        true_run = kind.run

        def run(self: Any, *args: Any, **options: Any) -> Any:
            tensors = [value for value in (*args, *options.values()) if is_virtual(value)]
            if not tensors:
                return true_run(self, *args, **options)
            machine.current.note(TRITON)
            for tensor in tensors:
                mode.values.forget(tensor)  # it may have written there
            return None

        return Patch(kind, "run", run)

    kinds = [jit.JITFunction, tuner.Autotuner, tuner.Heuristics]
    driver = TritonDriver(machine)
    return [
        *(passing(kind) for kind in kinds),
        Patch(config.DriverConfig, "active", property(lambda _self: driver)),
    ]
