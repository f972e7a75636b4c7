"""Read GPU memory through NVML without creating a CUDA context.

Figures cover the whole card, this process and the others. NVML counts what nvidia-smi shows. In a
container it may show host PIDs or no process memory at all; then this process's figure is None,
never 0.

Drivers, virtual cards and incomplete packages return all kinds of values. An impossible figure
counts as unknown. Any exception means that NVML is unavailable. A call that hangs is abandoned
(`timeouts.py`), once for the process.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from nbmem.capture.devices import amd, resident_memory
from nbmem.capture.devices.nvml_readings import (
    CardReading,
    NvmlCard,
    card_bytes,
    is_wddm,
    name_of,
    processes_of,
    query_or_default,
    unattributed_bytes,
)
from nbmem.capture.timeouts import COLD_S, LIMIT_S, HungError, call_with_timeout
from nbmem.capture.torch_cuda import initialized_torch
from nbmem.capture.validation import format_excess, format_value, text_of, whole_bytes
from nbmem.core.errors import ProbeUnavailableError
from nbmem.core.runtime.fault_isolation import error_of

logger = logging.getLogger("nbmem")

Answer = TypeVar("Answer")

_MAX_CARDS = 1024
_hung: dict[str, Any] = {}
"""The function whose call has hung (pynvml's `nvmlInit`), for the rest of the process. A virtual
card installs another one."""


class NvmlProbe:
    """A reader of GPUs by CUDA ordinal; NVML is opened at the first read.

    Raises (from every method but `close`):
        ProbeUnavailableError: NVML or the card cannot be read here, or has timed out.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}
        self._wddm: dict[int, bool] = {}  # by card; constant until the driver restarts

    def cards(self) -> tuple[NvmlCard, ...]:
        """Return every working GPU of the machine, visible to torch or not."""
        load()
        return call_nvml(self._cards, COLD_S)

    def read(self, ordinal: int, *, others: bool = False) -> CardReading:
        """Read the memory figures of one GPU.

        One reading takes 0.17 ms on an H100's host, the list of processes included.

        Args:
            ordinal: CUDA ordinal.
            others: Also list the other processes by name.

        Raises:
            ImpossibleReadingError: A figure that was read is impossible.
        """
        load()
        return call_nvml(lambda: self._read(ordinal, others=others), LIMIT_S)

    def other_processes(self, ordinal: int) -> dict[int, int]:
        """Return the bytes of other processes on a GPU by PID.

        Processes whose bytes the driver hides are omitted.
        """
        load()
        held = call_nvml(lambda: processes_of(self._open(), self._handle(ordinal)), LIMIT_S)
        return {pid: size for pid, size in held.items() if size and pid != os.getpid()}

    def close(self) -> None:
        """Shut NVML down; the next reading opens it again."""
        if self._nvml is not None:
            nvml, self._nvml = self._nvml, None
            self._handles.clear()
            try:
                call_nvml(nvml.nvmlShutdown, LIMIT_S)
            except ProbeUnavailableError:  # there are no further readings, so nothing is lost
                logger.debug("NVML could not be closed", exc_info=True)

    def _cards(self) -> tuple[NvmlCard, ...]:
        nvml = self._open()
        driver = text_of(query_or_default(nvml.nvmlSystemGetDriverVersion, None))
        count = whole_bytes(nvml.nvmlDeviceGetCount())
        if count is None or count > _MAX_CARDS:
            raise ProbeUnavailableError(_NO_COUNT)
        found, errors = [], []
        for index in range(count):
            try:
                found.append(self._card(index, driver))
            except Exception as err:  # noqa: BLE001 - a lost card hides no other
                errors.append(err)
        if errors and not found:
            raise errors[0]
        return tuple(found)

    def _card(self, index: int, driver: str) -> NvmlCard:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = name_of(nvml, handle)
        found = card_bytes(nvml, handle, name=name)
        return NvmlCard(
            index=index,
            name=name,
            total=None if found is None else found.total,
            driver=driver,
            shared=found is not None and found.shared,
        )

    def _read(self, ordinal: int, *, others: bool) -> CardReading:
        handle = self._handle(ordinal)
        found = card_bytes(self._nvml, handle, ordinal=ordinal)
        if found is None:
            raise ProbeUnavailableError(_NO_BYTES)
        used, doubts = found.total - found.free, {}
        if not (found.by_nvml or found.shared):
            doubts["memory"] = _BY_CUDA
        driver = whole_bytes(found.driver)
        if driver is None or driver > used:
            doubts["driver"] = format_excess("the driver keeps", found.driver, used)
            driver = 0
        held = processes_of(self._nvml, handle)
        if not found.shared:  # most of the host's bytes belong to no process on the card
            driver += unattributed_bytes(used - driver, held)
        process = held.pop(os.getpid(), None) or None
        if process is not None and process > used:
            doubts["process"] = format_excess("this process holds", process, used)
            process = None
        return CardReading(
            total=found.total,
            used=used,
            driver=driver,
            process=process,
            shared=found.shared,
            wddm=self._is_wddm(ordinal),
            others={
                resident_memory.process_name(pid): size
                for pid, size in held.items()
                if size and size <= used
            }
            if others
            else {},
            doubts=doubts,
        )

    def _is_wddm(self, ordinal: int) -> bool:
        if ordinal not in self._wddm:
            self._wddm[ordinal] = is_wddm(self._nvml, self._handle(ordinal))
        return self._wddm[ordinal]

    def _open(self) -> Any:
        if self._nvml is None:
            nvml = load()
            nvml.nvmlInit()
            self._nvml = nvml
        return self._nvml

    def _handle(self, ordinal: int) -> Any:
        """Return NVML's handle for a CUDA ordinal.

        It is found by UUID if torch knows it, because NVML and CUDA order cards differently.
        """
        nvml = self._open()
        if ordinal not in self._handles and isinstance(nvml, amd.Amdsmi):
            self._handles[ordinal] = nvml.handle_of(ordinal)
        if ordinal not in self._handles:
            self._handles[ordinal] = _handle_by_uuid(
                nvml, ordinal
            ) or nvml.nvmlDeviceGetHandleByIndex(_nvml_index(ordinal))
        return self._handles[ordinal]


def load() -> Any:
    """Import the NVML bindings or, for AMD cards, an adapter for them.

    The import runs outside any time limit: it may take longer, and it calls no driver.

    For AMD's cards the returned module has equal functions.

    Raises:
        ProbeUnavailableError: The package is not installed, or only in part.
    """
    if amd.is_rocm():
        return amd.load()
    try:
        import pynvml
    except ModuleNotFoundError as err:
        raise ProbeUnavailableError(
            "The package nvidia-ml-py is not installed, so the process and device figures of "
            "nvidia-smi are missing; torch's own counters still work. "
            "Install nvidia-ml-py to have them."
        ) from err
    except Exception as err:  # half-installed
        raise ProbeUnavailableError(
            f"The package nvidia-ml-py cannot be imported ({error_of(err)}), so the process and "
            "device figures of nvidia-smi are missing; torch's own counters still work. "
            "Install nvidia-ml-py anew to have them."
        ) from err
    return pynvml


def hung() -> str | None:
    """Return the error text if NVML has hung in this process, else None."""
    return _HUNG if _hung.get("call", _hung) is _answering() else None


def give_up() -> str:
    """Stop calling NVML because a call hung; return the error text."""
    _hung["call"] = _answering()
    return _HUNG


def _answering() -> Any:
    """Return the nvmlInit function that is installed now.

    It is another one once a virtual card is installed.
    """
    return getattr(sys.modules.get("pynvml"), "nvmlInit", None)


def _unavailable(err: Exception) -> ProbeUnavailableError:
    return ProbeUnavailableError(
        f"NVML cannot be read ({format_value(err) or error_of(err)}). The process and device "
        "figures of "
        "nvidia-smi are missing; torch's own counters still work. Check that nvidia-smi runs in "
        "this environment."
    )


def call_nvml(
    call: Callable[[], Answer],
    limit_s: float,
    unreadable: Callable[[Exception], ProbeUnavailableError] = _unavailable,
) -> Answer:
    """Call NVML within a time limit; every NVML call goes through here.

    Args:
        call: The call.
        limit_s: Seconds to wait.
        unreadable: Creates the error for an exception of NVML's.

    Raises:
        ProbeUnavailableError: NVML raises, or has timed out, now or before.
    """
    if (why := hung()) is not None:
        raise ProbeUnavailableError(why)
    try:
        return call_with_timeout(call, limit_s)
    except ProbeUnavailableError:
        raise
    except HungError as err:
        raise ProbeUnavailableError(give_up()) from err
    except Exception as err:
        raise unreadable(err) from err


def _handle_by_uuid(nvml: Any, ordinal: int) -> Any:
    try:
        torch: Any = initialized_torch()
        uuid = getattr(torch.cuda.get_device_properties(ordinal), "uuid", None) if torch else None
        return None if uuid is None else nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception:  # noqa: BLE001 - a MIG slice has another form of UUID: the index is used
        return None


def _nvml_index(ordinal: int) -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    listed = [part.strip() for part in visible.split(",") if part.strip()]
    if ordinal < len(listed) and listed[ordinal].isdecimal():
        return int(listed[ordinal])
    return ordinal


_HUNG = (
    "The driver did not answer within a second, so the process and device figures of nvidia-smi "
    "are missing from here on, and nobody asks it again in this process; torch's own counters "
    "still work. Check that nvidia-smi answers, and restart the kernel."
)
_NO_BYTES = (
    "NVML does not say how much memory this card has, so the process and device figures of "
    "nvidia-smi are missing; torch's own counters still work. Check what nvidia-smi shows."
)
_BY_CUDA = (
    "NVML does not say how much memory this card has: its total and free bytes are those of "
    "cudaMemGetInfo."
)
_NO_COUNT = (
    "NVML does not say how many cards there are, so the process and device figures of nvidia-smi "
    "are missing; torch's own counters still work. Check what nvidia-smi shows."
)
