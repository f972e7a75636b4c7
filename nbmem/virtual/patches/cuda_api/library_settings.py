"""Settings of CUDA's libraries that torch's C++ holds.

These are sizes, preferences, tuning and pinned memory. Values and defaults are those of the oracle
(tests/oracle) with torch 2.13.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nbmem.core.errors import UsageError
from nbmem.core.units import MIB
from nbmem.virtual.patches.patcher import Patch

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine
    from nbmem.virtual.tensors.host.pinned import Pinned

FFT_PLANS = 4096
"""Plans of cuFFT's that torch caches; none is made here."""
_NO_OTHER = (
    "A virtual GPU has torch's own allocator: another one is compiled code that asks the driver. "
    "Leave change_current_allocator out where the card is virtual."
)
_TELLS_NOTHING = (
    "set_sync_debug_mode is remembered, and no operation is told of: nothing waits for a virtual "
    "GPU."
)


def setting_functions(machine: Machine, pinned: Pinned) -> dict[str, Any]:
    """Return the torch._C functions of all settings."""
    return {
        **_workspaces(machine),
        **_preferences(machine),
        **_tuning(machine),
        **_host_memory(pinned),
        **_refused(),
    }


def plan_patches() -> list[Patch]:
    """Return patches of cuFFT's plan cache, which stays empty.

    The cache's properties hold the functions that they call.
    """
    most: dict[int, int] = {}
    cache = vars(torch.backends.cuda.cuFFTPlanCache)
    return [
        Patch(cache["size"], "getter", lambda device: 0),
        Patch(cache["max_size"], "getter", lambda device: most.get(device, FFT_PLANS)),
        Patch(cache["max_size"], "setter", most.__setitem__),
        Patch(torch, "_cufft_clear_plan_cache", lambda device: None),
    ]


def _workspaces(machine: Machine) -> dict[str, Any]:
    """Return the functions that get and set cuBLAS workspace sizes.

    A size that is set holds for all cards, and overrides the environment's.
    """

    def setter(library: str) -> Any:
        def put(size: int) -> None:
            if size < 0:
                raise RuntimeError(f"{library} workspace size must be non-negative, got {size}")
            for gpu in machine.gpus:
                gpu.workspaces.asked[library] = size

        return put

    return {
        "_cuda_getCublasWorkspaceSize": lambda: machine.current.workspaces.cublas_size,
        "_cuda_getCublasLtWorkspaceSize": lambda: machine.current.workspaces.cublaslt_size,
        "_cuda_setCublasWorkspaceSize": setter("cublas"),
        "_cuda_setCublasLtWorkspaceSize": setter("cublaslt"),
    }


def _preferences(machine: Machine) -> dict[str, Any]:
    """Return the functions that choose among libraries.

    They also hold the sync debug mode and cuDNN's benchmark limit.
    """
    kept: dict[str, Any] = {"sync": 0, "limit": 10}

    def set_sync(mode: int) -> None:
        kept["sync"] = mode
        if mode:
            machine.current.note(_TELLS_NOTHING)

    functions: dict[str, Any] = {
        "_cuda_set_sync_debug_mode": set_sync,
        "_cuda_get_sync_debug_mode": lambda: kept["sync"],
        "_cuda_get_cudnn_benchmark_limit": lambda: kept["limit"],
        "_cuda_set_cudnn_benchmark_limit": lambda limit: kept.update(limit=limit),
    }
    for kind, kinds in (("blas", "_BlasBackend"), ("linalg", "_LinalgBackend")):
        backends = getattr(torch._C, kinds, None)
        if backends is None:
            continue
        plain = getattr(torch._C, f"_get_{kind}_preferred_backend")()

        def choose(backend: Any, kind: str = kind, plain: Any = plain) -> None:
            kept[kind] = plain if backend.name == "Default" else backend

        def chosen(kind: str = kind, plain: Any = plain) -> Any:
            return kept.get(kind, plain)

        functions[f"_set_{kind}_preferred_backend"] = choose
        functions[f"_get_{kind}_preferred_backend"] = chosen
    return functions


def _tuning(machine: Machine) -> dict[str, Any]:
    """Return torch.cuda.tunable's functions, which tune nothing."""
    kept: dict[str, Any] = {
        "enabled": False, "tuning": True, "untuned": False, "filename": "",
        "duration": 30, "iterations": 100, "buffer": None,
    }  # fmt: skip

    def put(name: str) -> Any:
        return lambda value: kept.update({name: value})

    def set_filename(filename: str, insert_device_ordinal: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's signature
        path = Path(filename)
        if insert_device_ordinal:
            ordinal = f"{path.stem}{machine.current.index}{path.suffix}"
            filename = filename.removesuffix(path.name) + ordinal
        kept["filename"] = filename

    def buffer() -> int:
        size = kept["buffer"]
        return machine.current.card.l2_bytes if size is None else size * MIB

    release = torch.__version__.split("+")[0]
    return {
        "_cuda_tunableop_enable": put("enabled"),
        "_cuda_tunableop_is_enabled": lambda: kept["enabled"],
        "_cuda_tunableop_tuning_enable": put("tuning"),
        "_cuda_tunableop_tuning_is_enabled": lambda: kept["tuning"],
        "_cuda_record_untuned_enable": put("untuned"),
        "_cuda_record_untuned_is_enabled": lambda: kept["untuned"],
        "_cuda_tunableop_set_max_tuning_duration": lambda ms: put("duration")(max(ms, 0)),
        "_cuda_tunableop_get_max_tuning_duration": lambda: kept["duration"],
        "_cuda_tunableop_set_max_tuning_iterations": lambda n: put("iterations")(max(n, 0)),
        "_cuda_tunableop_get_max_tuning_iterations": lambda: kept["iterations"],
        "_cuda_tunableop_set_filename": set_filename,
        "_cuda_tunableop_get_filename": lambda: kept["filename"],
        "_cuda_tunableop_get_results": lambda: (),
        "_cuda_tunableop_get_validators": lambda: (("PT_VERSION", release),),
        "_cuda_tunableop_read_file": lambda filename=None: False,
        "_cuda_tunableop_set_rotating_buffer_size": lambda n: put("buffer")(n if n >= 0 else None),
        "_cuda_tunableop_get_rotating_buffer_size": buffer,
        "_cuda_tunableop_set_numerical_check_tolerances": lambda *tolerances: None,
    }


def _host_memory(pinned: Pinned) -> dict[str, Any]:
    """Return the functions of the caching allocator of pinned memory."""
    pool = pinned.pool
    return {
        "_cuda_hostMemoryStats": pool.statistics,
        "_cuda_resetPeakHostMemoryStats": pool.reset_peaks,
        "_cuda_resetAccumulatedHostMemoryStats": pool.reset_accumulated,
        "_host_emptyCache": pool.empty_cache,
        "_accelerator_emptyHostCache": pool.empty_cache,
    }


def _refused() -> dict[str, Any]:
    """Return the functions of custom allocators, which are refused."""

    def refuse(*_args: Any) -> Any:
        raise UsageError(_NO_OTHER)

    return {
        "_cuda_getAllocator": lambda: None,
        "_cuda_customAllocator": refuse,
        "_cuda_changeCurrentAllocator": refuse,
    }
