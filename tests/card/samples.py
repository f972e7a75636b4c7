"""torch's own samples of its operators, as the oracle records them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from tests.card.allocator_requests import warm_up_libraries
from tests.oracle.record import raise_timeout, record_operator
from tests.oracle.samples import database

if TYPE_CHECKING:
    from tests.card.parts import Case


def cases() -> Iterator[Case]:
    """Every operator, in float32 and then in half types."""
    import torch

    signal.signal(signal.SIGPROF, raise_timeout)
    warm_up_libraries()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for one in database(torch, dtype):
            yield (
                f"{one.name} {str(dtype).removeprefix('torch.')}",
                partial(record_operator, torch, one),
            )
