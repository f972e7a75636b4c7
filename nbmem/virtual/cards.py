"""The cards that can be imitated: what their driver reports, and where each figure is from.

`total_bytes` is what cudaMemGetInfo and `get_device_properties().total_memory` answer; NVML reports
more, since it counts what the driver and ECC keep for themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nbmem.core.units import MIB

H100_CONTEXT = 610 * MIB
"""Process memory that NVML reports for a bare context on an H100 (tests/recordings, `context`)."""
H100_CUBLAS = 66 * MIB
"""What NVML's figure grows by when a thread makes its first cuBLAS handle: 64 to 68 MiB in the
recordings, once in the forward thread and once in the engine's."""
H100_CUDNN = 10 * MIB
"""The same for the first cuDNN handle of a thread: 10 to 12 MiB (deeplabv3, unet, squeezenet)."""
H100_NCCL = 564 * MIB
"""The same for NCCL's first communicator (ddp_resnet50_b32_sgdm, world size 1). With more ranks it
grows by the channels to each peer: 0.5 to 1.6 GiB are reported (NVIDIA/nccl#964, #1685)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One kind of card; sizes in bytes.

    Attributes:
        key: How nbmem names it.
        name: As the driver reports it.
        total_bytes: Memory that CUDA reports.
        nvml_total: Memory that NVML and nvidia-smi report.
        processors: Streaming multiprocessors.
        capability: Compute capability.
        threads_per_processor: Resident threads of one multiprocessor.
        shared_bytes: Shared memory that one block may ask for.
        l2_bytes: L2 cache.
        context_bytes: Process memory of a bare context.
        cublas_bytes: Process memory of one cuBLAS handle, outside of torch's allocator.
        cudnn_bytes: The same for cuDNN.
        nccl_bytes: The same for NCCL's communicator.
        aliases: Other names, in lower case.
        source: Where `total_bytes` is from; "estimate" says by which rule.
    """

    key: str
    name: str
    total_bytes: int
    nvml_total: int
    processors: int
    capability: tuple[int, int]
    threads_per_processor: int
    shared_bytes: int
    l2_bytes: int
    context_bytes: int
    cublas_bytes: int = H100_CUBLAS
    cudnn_bytes: int = H100_CUDNN
    nccl_bytes: int = H100_NCCL
    aliases: tuple[str, ...] = ()
    source: str = field(default="", repr=False)


def _context(processors: int, threads: int) -> int:
    """Estimate of a bare context where no recording is at hand.

    The driver keeps local memory and stacks for every resident thread, so that part of the context
    grows with them; the rest is code. Half of the H100's context is taken to grow.
    """
    share = processors * threads / (132 * 2048)
    return int(H100_CONTEXT * (0.5 + 0.5 * share)) // (2 * MIB) * (2 * MIB)


CARDS: tuple[Card, ...] = (
    Card(
        key="H100 80GB",
        name="NVIDIA H100 80GB HBM3",
        total_bytes=85_017_493_504,
        nvml_total=81_559 * MIB,
        processors=132,
        capability=(9, 0),
        threads_per_processor=2048,
        shared_bytes=227 << 10,
        l2_bytes=50 * MIB,
        context_bytes=H100_CONTEXT,
        aliases=("h100", "h100 sxm", "nvidia h100"),
        source="tests/recordings, total_memory and context; NVML total: modal-labs/modal-client#2797",
    ),
    Card(
        key="H200",
        name="NVIDIA H200",
        total_bytes=143_156 * MIB,
        nvml_total=143_771 * MIB,
        processors=132,
        capability=(9, 0),
        threads_per_processor=2048,
        shared_bytes=227 << 10,
        l2_bytes=60 * MIB,
        context_bytes=H100_CONTEXT,
        aliases=("h200 141gb", "nvidia h200"),
        source="public print of get_device_properties: total_memory=143156MB, 132 processors, L2 60MB; "
        "context: estimate, the H100's (same chip)",
    ),
    Card(
        key="A100 80GB",
        name="NVIDIA A100-SXM4-80GB",
        total_bytes=81_155 * MIB,
        nvml_total=81_920 * MIB,
        processors=108,
        capability=(8, 0),
        threads_per_processor=2048,
        shared_bytes=163 << 10,
        l2_bytes=40 * MIB,
        context_bytes=_context(108, 2048),
        aliases=("a100", "a100 80g", "nvidia a100"),
        source="estimate of CUDA's total: 79.25 GiB in out-of-memory messages (levihsu/OOTDiffusion#235); "
        "NVML total: modal-labs/modal-client#2797; context: estimate, scaled by resident threads",
    ),
    Card(
        key="A100 40GB",
        name="NVIDIA A100-SXM4-40GB",
        total_bytes=42_298_834_944,
        nvml_total=40_960 * MIB,
        processors=108,
        capability=(8, 0),
        threads_per_processor=2048,
        shared_bytes=163 << 10,
        l2_bytes=40 * MIB,
        context_bytes=_context(108, 2048),
        aliases=("a100 40g",),
        source="deviceQuery in bottlerocket-os/bottlerocket#3873; NVML total: "
        "modal-labs/modal-client#2797; context: estimate, scaled by resident threads",
    ),
    Card(
        key="L4",
        name="NVIDIA L4",
        total_bytes=23_583_784_960,
        nvml_total=23_034 * MIB,
        processors=58,
        capability=(8, 9),
        threads_per_processor=1536,
        shared_bytes=99 << 10,
        l2_bytes=48 * MIB,
        context_bytes=_context(58, 1536),
        aliases=("l4 24gb", "nvidia l4"),
        source="deviceQuery in bottlerocket-os/bottlerocket-kernel-kit#139; NVML total: "
        "modal-labs/modal-client#2797; context: estimate, scaled by resident threads",
    ),
    Card(
        key="L40S",
        name="NVIDIA L40S",
        total_bytes=45_589 * MIB,
        nvml_total=46_068 * MIB,
        processors=142,
        capability=(8, 9),
        threads_per_processor=1536,
        shared_bytes=99 << 10,
        l2_bytes=96 * MIB,
        context_bytes=_context(142, 1536),
        aliases=("l40s 48gb", "nvidia l40s"),
        source="public print of get_device_properties: total_memory=45589MB, 142 processors; NVML total: "
        "modal-labs/modal-client#2797; context: estimate, scaled by resident threads",
    ),
    Card(
        key="A10",
        name="NVIDIA A10",
        total_bytes=22_592 * MIB,
        nvml_total=23_028 * MIB,
        processors=72,
        capability=(8, 6),
        threads_per_processor=1536,
        shared_bytes=99 << 10,
        l2_bytes=6 * MIB,
        context_bytes=_context(72, 1536),
        aliases=("a10 24gb", "a10g", "nvidia a10"),
        source="estimate of CUDA's total: NVML's less 1.9%, what the RTX 3090 loses (same chip family); "
        "NVML total: modal-labs/modal-client#2797; context: estimate, scaled by resident threads",
    ),
    Card(
        key="T4",
        name="Tesla T4",
        total_bytes=15_102 * MIB,
        nvml_total=15_360 * MIB,
        processors=40,
        capability=(7, 5),
        threads_per_processor=1024,
        shared_bytes=64 << 10,
        l2_bytes=4 * MIB,
        context_bytes=_context(40, 1024),
        aliases=("t4 16gb", "tesla t4", "nvidia t4"),
        source="public print of get_device_properties with torch 2.2: total_memory=15102MB, 40 processors; "
        "NVML total: modal-labs/modal-client#2797; context: estimate, scaled by resident threads",
    ),
    Card(
        key="V100 16GB",
        name="Tesla V100-SXM2-16GB",
        total_bytes=16_160 * MIB,
        nvml_total=16_384 * MIB,
        processors=80,
        capability=(7, 0),
        threads_per_processor=2048,
        shared_bytes=96 << 10,
        l2_bytes=6 * MIB,
        context_bytes=_context(80, 2048),
        aliases=("v100", "v100 16g", "tesla v100"),
        source="public prints of get_device_properties: total_memory=16160MB, 80 processors; NVML total and "
        "context: estimates (the marketed size; scaled by resident threads)",
    ),
    Card(
        key="V100 32GB",
        name="Tesla V100-SXM2-32GB",
        total_bytes=32_502 * MIB,
        nvml_total=32_768 * MIB,
        processors=80,
        capability=(7, 0),
        threads_per_processor=2048,
        shared_bytes=96 << 10,
        l2_bytes=6 * MIB,
        context_bytes=_context(80, 2048),
        aliases=("v100 32g",),
        source="estimate of CUDA's total: 31.74 GiB in out-of-memory messages "
        "(liucongg/ChatGLM-Finetuning#73); NVML total and context: estimates as for the 16 GB card",
    ),
    Card(
        key="RTX 3090",
        name="NVIDIA GeForce RTX 3090",
        total_bytes=24_114 * MIB,
        nvml_total=24_576 * MIB,
        processors=82,
        capability=(8, 6),
        threads_per_processor=1536,
        shared_bytes=99 << 10,
        l2_bytes=6 * MIB,
        context_bytes=_context(82, 1536),
        aliases=("3090", "rtx3090", "geforce rtx 3090"),
        source="estimate: the RTX 3090 Ti's public print (total_memory=24114MB of 24564 MiB); "
        "context: estimate, scaled by resident threads",
    ),
    Card(
        key="RTX 4090",
        name="NVIDIA GeForce RTX 4090",
        total_bytes=24_207 * MIB,
        nvml_total=24_564 * MIB,
        processors=128,
        capability=(8, 9),
        threads_per_processor=1536,
        shared_bytes=99 << 10,
        l2_bytes=72 * MIB,
        context_bytes=_context(128, 1536),
        aliases=("4090", "rtx4090", "geforce rtx 4090"),
        source="estimate of CUDA's total: 23.64 GiB in out-of-memory messages (ali-vilab/VGen#104); "
        "context: estimate, scaled by resident threads",
    ),
    Card(
        key="RTX 5090",
        name="NVIDIA GeForce RTX 5090",
        total_bytes=33_677_180_928,
        nvml_total=32_607 * MIB,
        processors=170,
        capability=(12, 0),
        threads_per_processor=1536,
        shared_bytes=99 << 10,
        l2_bytes=96 * MIB,
        context_bytes=_context(170, 1536),
        aliases=("5090", "rtx5090", "geforce rtx 5090"),
        source="deviceQuery in aikitoria/open-gpu-kernel-modules#1; NVML total: estimate, the marketed "
        "32 GiB less what ECC-less cards of the family keep; context: estimate, by resident threads",
    ),
)
