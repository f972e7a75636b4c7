"""List the processes that hold memory on the GPUs of this machine.

NVML names the processes; psutil and the user's Jupyter servers describe them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbmem.capture.devices import nvml
from nbmem.capture.devices.nvml_readings import card_bytes, is_wddm, name_of, processes_of
from nbmem.capture.devices.resident_memory import notebook_of
from nbmem.capture.processes import jupyter_servers
from nbmem.capture.timeouts import COLD_S
from nbmem.capture.validation import whole_bytes
from nbmem.core.errors import ProbeUnavailableError
from nbmem.core.files.kernel_status import read_status
from nbmem.core.gpu_processes import GpuProcess, OccupiedCard
from nbmem.core.session.tensor_names import printable_text

if TYPE_CHECKING:
    from nbmem.capture.processes.jupyter_servers import Kernel

LONGEST = 80
"""Maximum characters of a command."""
_KERNEL = re.compile(r"kernel-([0-9a-f]{8}-[0-9a-f-]{27})\.json")
_MAX_CARDS = 1_024


def cards_now(*, kernels: Mapping[str, Kernel] | None = None) -> tuple[OccupiedCard, ...]:
    """Return every GPU of the machine with the processes on it.

    Args:
        kernels: The kernels of the user's Jupyter servers, by id; None to query them.

    Raises:
        ProbeUnavailableError: NVML cannot be read here, or has timed out.
    """
    known = jupyter_servers.kernels() if kernels is None else kernels
    library = nvml.load()
    read = nvml.call_nvml(lambda: _read(library), COLD_S, _unreadable)
    return tuple(_card(card, held, known) for card, held in read)


def _unreadable(err: Exception) -> ProbeUnavailableError:
    return ProbeUnavailableError(
        f"NVML cannot be read ({printable_text(str(err))}): no card of NVIDIA's is seen here. "
        "Check "
        "that nvidia-smi runs in this environment."
    )


def _read(library: Any) -> list[tuple[OccupiedCard, dict[int, int | None]]]:
    library.nvmlInit()
    try:
        count = whole_bytes(library.nvmlDeviceGetCount()) or 0
        return [_read_card(library, index) for index in range(min(count, _MAX_CARDS))]
    finally:
        with suppress(Exception):
            library.nvmlShutdown()


def _read_card(library: Any, index: int) -> tuple[OccupiedCard, dict[int, int | None]]:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    name = name_of(library, handle)
    found = card_bytes(library, handle, name=name)
    used = None if found is None else found.total - found.free
    mig = False
    with suppress(Exception):  # most cards have none
        mig = library.nvmlDeviceGetMigMode(handle)[0] == 1
    return (
        OccupiedCard(
            index=index,
            name=printable_text(name),
            total=None if found is None else found.total,
            used=used,
            driver=0 if found is None else min(whole_bytes(found.driver) or 0, used or 0),
            mig=mig,
            shared=found is not None and found.shared,
            wddm=is_wddm(library, handle),
        ),
        {
            pid: size if size and (used is None or size <= used) else None
            for pid, size in processes_of(library, handle).items()
        },
    )


def _card(
    card: OccupiedCard, held: Mapping[int, int | None], kernels: Mapping[str, Kernel]
) -> OccupiedCard:
    found = [describe_process(pid, used, kernels) for pid, used in held.items()]
    found.sort(key=lambda one: (-(one.used or 0), one.pid))
    return replace(card, neighbours=tuple(found))


def describe_process(pid: int, used: int | None, kernels: Mapping[str, Kernel]) -> GpuProcess:
    """Describe one process on a GPU, as far as this user may see it.

    Args:
        pid: The process ID from the driver.
        used: Its bytes there; None if they are hidden.
        kernels: The kernels of this user's servers.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        began = process.create_time()
        dead = process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return GpuProcess(pid=pid, used=used, gone=True)
    except Exception:  # noqa: BLE001 - hidden
        return GpuProcess(pid=pid, used=used)
    user = command = kernel = None
    with suppress(Exception):
        user = printable_text(process.username())
    with suppress(Exception):
        line = " ".join(process.cmdline()) or process.name()
        command = printable_text(line)[:LONGEST]
        found = _KERNEL.search(line)
        kernel = found.group(1) if found else None
    own = False
    with suppress(Exception):
        own = not hasattr(os, "getuid") or process.uids().real == os.getuid()
    running = kernels.get(kernel or "")
    return GpuProcess(
        pid=pid,
        used=used,
        user=user,
        command=command,
        notebook=running.notebook if running is not None and running.notebook else notebook_of(pid),
        kernel=kernel,
        busy=None if running is None else running.busy,
        own=own,
        gone=dead,
        status=read_status(pid, began=began) if own else None,
    )
