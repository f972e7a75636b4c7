"""Read a GPU's memory and its processes from NVML."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from nbmem.capture.devices.unified_memory import is_shared, memory_of_host, memory_without_nvml
from nbmem.capture.torch_cuda import device_count
from nbmem.capture.validation import text_of, total_and_free, whole_bytes
from nbmem.core.units import MIB

Answer = TypeVar("Answer")

_NOT_SUPPORTED = 3
"""NVML_ERROR_NOT_SUPPORTED, the `value` of the package's errors."""
_NO_MEMORY = object()
_WDDM = 0
"""NVML_DRIVER_WDDM: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html."""
_MAX_UNATTRIBUTED_PER_PROCESS = 16 * MIB
"""Limit of unattributed bytes for the card and for each process: twice the observed bytes."""


def memory_of(library: Any, handle: Any) -> Any:
    """Read a GPU's memory structure, by the newer call where there is one.

    nvidia-smi uses the newer call (version 2) since driver 510.
    """
    try:
        return library.nvmlDeviceGetMemoryInfo(handle, version=library.nvmlMemory_v2)
    except Exception:  # noqa: BLE001 - an older package, or an older driver
        return library.nvmlDeviceGetMemoryInfo(handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading:
    """One reading of the memory of a whole GPU.

    Attributes:
        total: The card's bytes, or the host's if it shares its memory.
        used: Bytes in use by all processes and the driver.
        driver: Bytes that the driver and the card's firmware reserve, and those that the driver
            assigns to no process (`unattributed_bytes`). Before release 510 it does not report what
            it reserves; those bytes then count as other processes.
        process: Bytes of this process; None if the driver does not report them.
        others: Bytes of other processes by name, where visible.
        shared: Whether the card uses the host's memory, and `total` and `used` are the host's.
        wddm: Whether Windows manages the memory, and moves what does not fit to the host.
        doubts: A sentence for each impossible figure that was read, by the figure's name.
    """

    total: int
    used: int
    driver: int
    process: int | None
    others: dict[str, int] = field(default_factory=dict)
    shared: bool = False
    wddm: bool = False
    doubts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlCard:
    """A GPU that NVML lists.

    Attributes:
        index: NVML's index.
        name: The driver's name.
        total: Bytes, the host's if it shares its memory; None if unknown.
        driver: Version of the driver.
        shared: Whether the card uses the host's memory.
    """

    index: int
    name: str
    total: int | None
    driver: str
    shared: bool = False


class CardBytes(NamedTuple):
    """Total, free and reserved bytes of one GPU.

    Attributes:
        total: The whole card, or the host's memory if it shares that.
        free: Unused bytes.
        driver: Bytes that the driver reports as reserved; not validated yet.
        shared: Whether the memory is the host's.
        by_nvml: Whether the figures are from NVML.
    """

    total: int
    free: int
    driver: Any
    shared: bool
    by_nvml: bool = True


def card_bytes(
    library: Any, handle: Any, *, name: str | None = None, ordinal: int | None = None
) -> CardBytes | None:
    """Read a GPU's bytes from NVML, else from CUDA or the host.

    Args:
        library: NVML.
        handle: Its card.
        name: The card's name; None to query it if necessary.
        ordinal: The card's CUDA ordinal; None if unknown.

    Returns:
        None if no source has them.

    Raises:
        ImpossibleReadingError: The figures are impossible.
        Exception: What NVML raises for a card that should have these figures.
    """
    memory: Any = query_or_default(lambda: memory_of(library, handle), _NO_MEMORY)
    if memory is not _NO_MEMORY and whole_bytes(memory.total) != 0:
        shared = is_shared(name or "", () if ordinal is None else (ordinal,))
        return CardBytes(*total_and_free(memory), getattr(memory, "reserved", 0), shared)
    found = None if ordinal is None else memory_without_nvml(ordinal)
    if found is None:
        known = name_of(library, handle) if name is None else name
        ordinals = range(device_count()) if ordinal is None else (ordinal,)
        found = memory_of_host() if is_shared(known, ordinals) else None
    if found is None:
        return None
    return CardBytes(found.total, found.free, 0, found.shared, by_nvml=False)


def name_of(library: Any, handle: Any) -> str:
    """Read a GPU's name; "unknown" where the driver does not report it."""
    return text_of(query_or_default(lambda: library.nvmlDeviceGetName(handle), None))


def is_wddm(library: Any, handle: Any) -> bool:
    """Return whether Windows manages a GPU's memory (WDDM), even under WSL.

    Then NVML reports no bytes of any process:
    https://docs.nvidia.com/deploy/nvml-api/structnvmlProcessInfo__v1__t.html
    """
    if "microsoft" in platform.release().lower():  # WSL's kernel, where NVML has no driver models
        return True
    try:
        return bool(library.nvmlDeviceGetCurrentDriverModel(handle) == _WDDM)
    except Exception:  # noqa: BLE001 - no Windows, or a package without the call
        return False


def query_or_default(ask: Callable[[], Any], otherwise: Answer) -> Any | Answer:
    """Query one figure of NVML; return `otherwise` if it is unsupported.

    Raises:
        Exception: Whatever else NVML raises: the card is lost, or the driver is.
    """
    try:
        return ask()
    except Exception as err:
        if getattr(err, "value", None) == _NOT_SUPPORTED or type(err).__name__.endswith(
            "NotSupported"
        ):
            return otherwise
        raise


def processes_of(library: Any, handle: Any) -> dict[int, int | None]:
    """Return bytes by PID, compute and graphics; None where hidden."""
    held: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        for pid, size in _listed(library, f"nvmlDeviceGet{kind}RunningProcesses", handle):
            if isinstance(pid, int) and pid >= 0:
                known = [one for one in (held.get(pid), size) if one is not None]
                held[pid] = max(known, default=None)
    return held


def unattributed_bytes(used: int, held: Mapping[int, int | None]) -> int:
    """Return the bytes in use that the driver assigns to no process.

    They can be known only while the bytes of every process are visible.

    On an H100 (driver 580.159) they are 3.25 MiB as soon as any process is on the card. Each
    context adds 5.6 MiB, and 30 GiB of a process's memory add 2 MiB. The context of a process that
    a container hides takes more, so larger amounts may be that process's.

    Args:
        used: Bytes in use, without those that the driver reserves.
        held: Bytes by PID, as `processes_of` reads them.

    Returns:
        0 if a figure is hidden, or if the bytes may be a hidden process's.
    """
    known = [size for size in held.values() if size is not None]
    rest = used - sum(known)
    most = _MAX_UNATTRIBUTED_PER_PROCESS * (1 + len(held))
    return rest if len(known) == len(held) and 0 < rest <= most else 0


def _listed(library: Any, ask: str, handle: Any) -> list[tuple[Any, int | None]]:
    try:
        running = getattr(library, ask)(handle)
        return [(process.pid, whole_bytes(process.usedGpuMemory)) for process in running]
    except Exception:  # noqa: BLE001 - MIG and some containers refuse; the totals remain
        return []
