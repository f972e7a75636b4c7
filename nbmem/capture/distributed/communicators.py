"""Read what NCCL's communicators hold of the card.

torch asks NCCL for it since 2.12, NCCL counts it since 2.29.7 (`Backend.memory_stats`). Other
backends refuse, as does one without a communicator yet. It is read once, in the thread of the
program when a recording ends: the call holds the GIL, and another thread might destroy the
communicator.
https://github.com/pytorch/pytorch/pull/176300
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

from nbmem.capture.validation import whole_bytes
from nbmem.core.runtime.interrupts import reraise_if_from_signal

MOST = 16
"""Process groups that are asked, the first ones."""
_MODULE = "torch.distributed.distributed_c10d"


def communicators(torch: Any) -> list[dict[str, Any]]:
    """Return the name, card and bytes of each communicator that tells them."""
    c10d: Any = sys.modules.get(_MODULE)
    found: list[dict[str, Any]] = []
    try:
        names = dict(islice(c10d._world.pg_names.items(), MOST))  # noqa: SLF001
        device = int(torch.cuda.current_device())
        asked: set[int] = set()
        for group, name in names.items():
            backend = group._get_backend(torch.device("cuda", device))  # noqa: SLF001
            if id(backend) not in asked:
                asked.add(id(backend))
                held = _bytes_of(backend)
                if held:
                    text = str(getattr(group, "group_desc", "") or name)
                    found.append({"name": text, "device": device, "held": held})
    except Exception as err:  # noqa: BLE001 - no process group, or another release of torch
        reraise_if_from_signal(err)
    return found


def _bytes_of(backend: Any) -> int | None:
    """Return the bytes of a backend's communicator on the card, or None.

    What it has given back with `suspend` is not on the card.
    """
    try:
        stats = backend.memory_stats()
        key = "persist" if stats["suspended"] else "total"
        return whole_bytes(stats[key])
    except Exception as err:  # noqa: BLE001 - gloo refuses, and NCCL before 2.29.7
        reraise_if_from_signal(err)
        return None
