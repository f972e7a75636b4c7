"""torch.profiler without the card's activity.

There is none, and torch would warn at each call.
"""

from __future__ import annotations

from typing import Any

from torch.autograd import profiler

from nbmem.virtual.patches.patcher import Patch


def profiling_patches() -> list[Patch]:
    """Return a patch that profiles the CPU's part, with memory of both."""
    original_init = profiler.profile.__init__
    states: Any = profiler.ProfilerState

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        if getattr(self, "profiler_kind", None) == states.KINETO_GPU_FALLBACK:
            self.profiler_kind = states.KINETO  # else it reads a driver's events

    return [Patch(profiler.profile, "__init__", init)]
