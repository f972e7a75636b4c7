"""Part `context`: memory outside of torch's allocator, by library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nbmem.capture.devices.nvml import NvmlProbe

if TYPE_CHECKING:
    from tests.card.parts import Case


def cases() -> Iterator[Case]:
    """Yield the untouched card, then the libraries one after another."""
    yield "card", card
    yield "libraries", libraries


def card() -> dict[str, Any]:
    """The totals that CUDA and NVML report; no context is made."""
    import torch

    reading = NvmlProbe().read(0)
    return {
        "total": torch.cuda.get_device_properties(0).total_memory,
        "nvml_total": reading.total,
        "driver": reading.driver,
        "used": reading.used,
    }


def outside(torch: Any, probe: NvmlProbe) -> tuple[int, str]:
    """Return this process's bytes beyond torch's segments, and their source.

    In a container NVML may not tell processes; then it is what the card lost since, which counts
    whatever others do meanwhile.
    """
    torch.cuda.synchronize()
    reading = probe.read(0)
    reserved = torch.cuda.memory_reserved()
    if reading.process is not None:
        return reading.process - reserved, "process"
    return reading.used - reserved, "card"


def libraries() -> dict[str, Any]:
    """Measure the growth of NVML's figure at each library's first use.

    A step that this build or card cannot take says so and takes no other with it.
    """
    import torch

    probe = NvmlProbe()
    before = probe.read(0).used
    found: dict[str, Any] = {}
    known = 0
    for name, use in _uses(torch).items():
        try:
            kept = use()
        except Exception as err:  # noqa: BLE001 - that a library is missing is a finding, too
            found[name] = f"{type(err).__name__}: {str(err)[:120]}"
            continue
        size, by = outside(torch, probe)
        size -= before if by == "card" else 0
        found[name] = size - known
        known = size
        found["by"] = by
        del kept
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # kept until here, for its bytes were read
    return found


def _uses(torch: Any) -> dict[str, Callable[[], Any]]:
    """Return by name a small call that loads the library."""
    functional = torch.nn.functional

    def of(*shape: int) -> Any:
        return torch.zeros(*shape, device="cuda", requires_grad=True)

    def group() -> Any:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
        return torch.distributed.all_reduce(of(8).detach())

    square = of(64, 64)
    images, kernels = of(2, 8, 16, 16), of(8, 8, 3, 3)
    return {
        "context": lambda: torch.zeros(1, device="cuda"),
        "a kernel": lambda: of(1024) + 1,
        "cublas": lambda: square.detach() @ square.detach(),
        "cublaslt": lambda: functional.linear(square.detach(), square.detach(), square[0].detach()),
        "cublas in backward": lambda: (square @ square).sum().backward(),
        "cudnn": lambda: functional.conv2d(images.detach(), kernels.detach()),
        "cudnn in backward": lambda: functional.conv2d(images, kernels).sum().backward(),
        "cufft": lambda: torch.fft.rfft(square.detach()),
        "cusolver": lambda: torch.linalg.eigvalsh(torch.eye(8, device="cuda")),
        "cusparse": lambda: square.detach().to_sparse_csr() @ square.detach(),
        "nccl": group,
    }
