"""What a program finds beside its names: torch's switches, random state, environment, folder.

They are read where the question is asked and put in place before every run, so that each begins as
the notebook stands: a program that turns a switch does not turn it for the next run.

A default device reaches what is imported, too. Up to torch 2.9 `get_default_device()` fails after
`set_default_device(None)`, so setting the device back removes the rest.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

_NAMED = {
    "backends.cuda.flash_sdp_enabled": "backends.cuda.enable_flash_sdp",
    "backends.cuda.mem_efficient_sdp_enabled": "backends.cuda.enable_mem_efficient_sdp",
    "backends.cuda.math_sdp_enabled": "backends.cuda.enable_math_sdp",
    "backends.cuda.cudnn_sdp_enabled": "backends.cuda.enable_cudnn_sdp",
    "get_default_dtype": "set_default_dtype",
    "get_deterministic_debug_mode": "set_deterministic_debug_mode",
    "get_float32_matmul_precision": "set_float32_matmul_precision",
    "is_anomaly_enabled": "autograd.set_detect_anomaly",
    "is_autocast_cache_enabled": "set_autocast_cache_enabled",
    "is_grad_enabled": "set_grad_enabled",
}
SWITCHES: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    *((get, put, ()) for get, put in _NAMED.items()),
    *(("is_autocast_enabled", "set_autocast_enabled", (kind,)) for kind in ("cuda", "cpu")),
    *(("get_autocast_dtype", "set_autocast_dtype", (kind,)) for kind in ("cuda", "cpu")),
    ("backends.cudnn.enabled", None, ()),
    ("backends.cudnn.benchmark", None, ()),
    ("backends.cudnn.deterministic", None, ()),
    ("backends.cudnn.allow_tf32", None, ()),
    ("backends.cudnn.conv.fp32_precision", None, ()),
    ("backends.cuda.matmul.allow_tf32", None, ()),
    ("backends.cuda.matmul.fp32_precision", None, ()),
    ("backends.cuda.matmul.allow_fp16_reduced_precision_reduction", None, ()),
    ("backends.cuda.matmul.allow_bf16_reduced_precision_reduction", None, ()),
)
"""torch's switches: what answers, what turns it (None: the attribute itself), first arguments."""


VISIBLE = "CUDA_VISIBLE_DEVICES"
NO_CARD = "-1"
"""Its value that shows CUDA no card; on Windows an empty variable is one that is not there."""


class Plans:
    """Plans of compiled regions, which the runs of one question share.

    Attributes:
        folder: Where they lie; None where nobody cleans up behind them.
    """

    folder: ClassVar[str | None] = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How a process stands.

    Attributes:
        path: sys.path.
        folder: The working directory.
        environment: os.environ.
        switches: torch's, by their place in SWITCHES; those that could be read.
        device: torch's default device; None for the CPU.
        random: State of the standard library's, numpy's and torch's generators; None where a
            library is not loaded.
    """

    path: list[str]
    folder: str
    environment: dict[str, str]
    switches: dict[int, Any]
    device: str | None
    random: tuple[Any, Any, Any]

    def put(self) -> None:
        """Put everything in place; what stands as it should is not touched."""
        os.chdir(self.folder)
        if dict(os.environ) != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        sys.path[:] = self.path
        import torch

        for number, value in self.switches.items():
            if _read(torch, number) != (value,):
                _turn(torch, number, value)
        if _device(torch) != self.device:
            _set_device(torch, self.device)
        own, arrays, tensors = self.random
        random.setstate(own)
        if arrays is not None:
            import numpy as np

            np.random.set_state(arrays)  # noqa: NPY002 - the one that programs share
        if tensors is not None:
            torch.set_rng_state(tensors)


def taken() -> Surroundings:
    """How this process stands."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    found = {} if torch is None else {n: _read(torch, n) for n in range(len(SWITCHES))}
    return Surroundings(
        path=list(sys.path),
        folder=os.getcwd(),  # noqa: PTH109 - as text
        environment=dict(os.environ),
        switches={number: value[0] for number, value in found.items() if value},
        device=None if torch is None else _device(torch),
        random=(
            random.getstate(),
            None if numpy is None else numpy.random.get_state(),
            None if torch is None else torch.get_rng_state(),
        ),
    )


_standing: list[Surroundings] = []


def stand(begin: Surroundings) -> None:
    """From here on, every run in this process begins so."""
    _standing[:] = [begin]


def restore() -> None:
    """A run begins.

    No card is visible to CUDA and to whatever the program starts, for what the virtual one does not
    catch must fail and not take memory. The program reads its own `CUDA_VISIBLE_DEVICES`: DeepSpeed
    makes numbers of it, others count them.
    """
    for begin in _standing:
        begin.put()
        os.putenv(VISIBLE, NO_CARD)  # os.environ is what it reads


def _read(torch: Any, number: int) -> tuple[Any, ...]:
    """A switch's value; nothing where this torch has none, or two that contradict each other."""
    get, put, arguments = SWITCHES[number]
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        found = _walk(torch, get)
        return (found if put is None else found(*arguments),)
    return ()


def _turn(torch: Any, number: int, value: Any) -> None:
    get, put, arguments = SWITCHES[number]
    if put is not None:
        _walk(torch, put)(*arguments, value)
        return
    owner, _, name = get.rpartition(".")
    setattr(_walk(torch, owner), name, value)


def _walk(torch: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        torch = getattr(torch, part)
    return torch


def _device(torch: Any) -> str | None:
    """torch.get_default_device() would make a tensor there to learn its number."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)  # noqa: SLF001 - no other way
    return None if context is None else str(context.device)


def _set_device(torch: Any, device: str | None) -> None:
    torch.set_default_device(device)
    if device is None:
        # Up to torch 2.9 get_default_device() asks the None that is left here for its device.
        del torch._GLOBAL_DEVICE_CONTEXT.device_context  # noqa: SLF001 - no other way
