"""Bytes of the workspaces that torch allocates for cuBLAS.

There is one workspace for each handle and stream.

parseChosenWorkspaceSize and getChosenWorkspaceSize of
https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/cuda/CublasHandlePool.cpp
_getWorkspaceSize of cuBLASLt:
https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/cuda/CUDABlas.cpp
"""

from __future__ import annotations

from nbmem.core.units import KIB, MIB

WORKSPACE = 2 * 4096 * KIB + 8 * 16 * KIB
"""Bytes of a cuBLAS workspace, unless CUBLAS_WORKSPACE_CONFIG sets them."""
WORKSPACE_HOPPER = 32 * MIB
"""The default from Hopper on. torch 2.13 excludes Thor (compute capability 11.0)."""
WORKSPACE_LT = 1 * MIB
"""Bytes of a cuBLASLt workspace, unless CUBLASLT_WORKSPACE_SIZE sets them."""
