"""Account for a card's memory that the driver has moved to the host.

Under Windows' driver model WDDM the driver does so since release 531, to avoid an out-of-memory
error: https://nvidia.custhelp.com/app/answers/detail/a_id/5490. WSL does, too:
https://github.com/microsoft/WSL/issues/11050. A pool of managed memory does so on any system.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nbmem.capture.torch_cuda import device_info
from nbmem.core.session.events import NOT_KNOWN

if TYPE_CHECKING:
    from nbmem.capture.record.recorder import Recorder
    from nbmem.core.session.session import CardSamples, DeviceInfo


def card_of(recorder: Recorder, index: int, most_reserved: int) -> DeviceInfo:
    """Describe a recorded card, with what the host held for it.

    Args:
        recorder: The recorder of the session.
        index: CUDA ordinal.
        most_reserved: Highest bytes that torch held on it.
    """
    sampler = recorder.sampler
    by_nvml, wddm = sampler.card_bytes(index), sampler.is_wddm(index)
    info = device_info(index, by_nvml, engine=recorder.engine, wddm=wddm)
    return with_spilled(info, most_reserved, sampler.samples(index))


def with_spilled(info: DeviceInfo, most_reserved: int, samples: CardSamples) -> DeviceInfo:
    """Add the bytes that the host held for a card to its description.

    The ledger then has room for all that torch held. Torch's reserved bytes exceed those that the
    card has for it, or those that are in use on the card.

    Args:
        info: The card, with the bytes that it has itself.
        most_reserved: Highest bytes that torch held on it.
        samples: Readings of the whole card.
    """
    read = samples[np.flatnonzero(samples.used != NOT_KNOWN)]
    in_use = np.maximum(read.used - info.driver_bytes, 0)
    away = int((read.reserved - in_use).max(initial=0)) if info.wddm else 0
    spilled = max(0, away, most_reserved + info.driver_bytes - info.total_bytes)
    return replace(info, total_bytes=info.total_bytes + spilled, spilled_bytes=spilled)
