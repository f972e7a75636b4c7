"""Figures that a compute capability decides, one record for each.

A new generation of cards is rows in cards.toml and one `Arch` here. Until it has one, its cards are
taken to be like the nearest that came before (`arch_of`), and a note says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nbmem.allocator.cublas import WORKSPACE, WORKSPACE_HOPPER
from nbmem.core.units import KIB
from nbmem.virtual import cub_tunings

if TYPE_CHECKING:
    from nbmem.virtual.cub_tunings import Cub


class Multiprocessor(NamedTuple):
    """Limits of one streaming multiprocessor.

    libcudacxx/include/cuda/__device/arch_traits.h, which has it for all capabilities from 6.0 on:
    https://github.com/NVIDIA/cccl/blob/6e3ed1e52479c17fca9904ce6508095cffc57b06

    Attributes:
        threads: Resident threads.
        blocks: Resident blocks.
        shared_bytes: Shared memory that one block may request.
    """

    threads: int
    blocks: int
    shared_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """Figures of one compute capability.

    Attributes:
        capability: Major and minor number.
        multiprocessor: How much one of them holds.
        cub: CUB's tiles in the code that torch has for it: a wheel has no code for every
            capability, and a card runs that of the nearest below with the same major number.
        cublas_workspace: Bytes of a cuBLAS workspace, if the environment does not set them.
        data_centre: Whether contexts are taken to grow as the H100's does.
        bfloat16: Whether its tensor cores take bfloat16, and ATen's fused attention half types.
        cudnn_attention: The widest head for which torch prefers cuDNN's attention; 0: for none.
            aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: check_prefer_cudnn_attention
    """

    capability: tuple[int, int]
    multiprocessor: Multiprocessor
    cub: Cub
    cublas_workspace: int = WORKSPACE
    data_centre: bool = False
    bfloat16: bool = True
    cudnn_attention: int = 0


_LIST = (
    Arch(
        capability=(6, 0),
        multiprocessor=Multiprocessor(2048, 32, 48 * KIB),
        cub=cub_tunings.PASCAL,
        bfloat16=False,
    ),
    Arch(
        capability=(6, 1),
        multiprocessor=Multiprocessor(2048, 32, 48 * KIB),
        cub=cub_tunings.PASCAL,
        bfloat16=False,
    ),
    Arch(
        capability=(7, 0),
        multiprocessor=Multiprocessor(2048, 32, 96 * KIB),
        cub=cub_tunings.VOLTA,
        bfloat16=False,
    ),
    Arch(
        capability=(7, 5),
        multiprocessor=Multiprocessor(1024, 16, 64 * KIB),
        cub=cub_tunings.VOLTA,
        bfloat16=False,
    ),
    Arch(
        capability=(8, 0),
        multiprocessor=Multiprocessor(2048, 32, 163 * KIB),
        cub=cub_tunings.A100,
    ),
    Arch(
        capability=(8, 6),
        multiprocessor=Multiprocessor(1536, 16, 99 * KIB),
        cub=cub_tunings.AMPERE,
    ),
    Arch(
        capability=(8, 7),
        multiprocessor=Multiprocessor(1536, 16, 163 * KIB),
        cub=cub_tunings.AMPERE,
    ),
    Arch(
        capability=(8, 9),
        multiprocessor=Multiprocessor(1536, 24, 99 * KIB),
        cub=cub_tunings.AMPERE,
    ),
    Arch(
        capability=(9, 0),
        multiprocessor=Multiprocessor(2048, 32, 227 * KIB),
        cub=cub_tunings.HOPPER,
        cublas_workspace=WORKSPACE_HOPPER,
        data_centre=True,
        cudnn_attention=256,
    ),
    Arch(
        capability=(10, 0),
        multiprocessor=Multiprocessor(2048, 32, 227 * KIB),
        cub=cub_tunings.BLACKWELL,
        cublas_workspace=WORKSPACE_HOPPER,
        data_centre=True,
        cudnn_attention=128,
    ),
    Arch(
        capability=(10, 3),
        multiprocessor=Multiprocessor(2048, 32, 227 * KIB),
        cub=cub_tunings.BLACKWELL,
        cublas_workspace=WORKSPACE_HOPPER,
        data_centre=True,
    ),
    Arch(
        capability=(11, 0),
        multiprocessor=Multiprocessor(1536, 24, 227 * KIB),
        cub=cub_tunings.BLACKWELL,
    ),
    Arch(
        capability=(12, 0),
        multiprocessor=Multiprocessor(1536, 24, 99 * KIB),
        cub=cub_tunings.BLACKWELL,
        cublas_workspace=WORKSPACE_HOPPER,
    ),
    Arch(
        capability=(12, 1),
        multiprocessor=Multiprocessor(1536, 24, 99 * KIB),
        cub=cub_tunings.BLACKWELL,
        cublas_workspace=WORKSPACE_HOPPER,
    ),
)
ARCHS = {arch.capability: arch for arch in _LIST}


def arch_of(capability: tuple[int, int]) -> Arch:
    """Return a capability's record, or the nearest lower one's.

    A lower one of the same major number comes first, if there is any. The oldest record serves for
    what is older than all. Callers compare `Arch.capability` and note what differs.
    """
    below = [known for known in ARCHS if known <= capability]
    return ARCHS[max(below, default=min(ARCHS))]
