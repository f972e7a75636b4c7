"""Run torch's own CUDA build on a driver that is not there.

This is the engine `torch`. A small library stands in for each CUDA library that torch links.
Kernels do nothing. Whatever asks for memory is torch's own: dispatcher, host code of operators,
autograd, allocator, Inductor. The other engine, `rules`, is nbmem.virtual, which imitates these on
any build of torch.

README.md says what is compiled, from what and where to. This package does not import torch.
"""

from __future__ import annotations

from nbmem.core.session.engines import RULES, TORCH

__all__ = ["AUTO", "ENGINES", "RULES", "TORCH"]

AUTO = "auto"
ENGINES = (AUTO, RULES, TORCH)
"""Values of the option --engine."""
