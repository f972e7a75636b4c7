"""torch's own samples of its operators, as the oracle records them."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

from tests.card.asked import warm
from tests.oracle.record import asked, late
from tests.oracle.samples import database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.card.parts import Case


def cases() -> Iterator[Case]:
    """Every operator, in float32 and then in half types."""
    import torch

    signal.signal(signal.SIGPROF, late)
    warm()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for one in database(torch, dtype):
            yield f"{one.name} {str(dtype).removeprefix('torch.')}", partial(asked, torch, one)
