"""Figures and texts of an out-of-memory error.

They come from torch's message and from readings while the request failed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.runtime.exceptions import exception_chain, is_raised, message_of
from nbmem.core.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from nbmem.core.session.events import Stack

_TEXT = re.compile(r"\bout of memory\b", re.IGNORECASE)
_SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"
_UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_PATTERNS = {
    "wanted": rf"Tried to allocate {_SIZE}",
    # torch up to 2.1 wrote "capacty", and before 2.1 all figures in one pair of brackets.
    "total": rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity",
    "free": rf"of which {_SIZE} is free|; {_SIZE} free",
    "process": rf"this process has {_SIZE} memory in use",
    "limit": rf"{_SIZE} allowed",
    "allocated": rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated",
    "cached": rf"{_SIZE} is reserved by PyTorch but unallocated",
    "reserved": rf"{_SIZE} reserved in total by PyTorch",
}
_OTHERS = re.compile(rf"Process \d+ has {_SIZE} memory in use")
_DEVICE = re.compile(r"GPU (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class OomMessage:
    """Figures in torch's out-of-memory message, in bytes; None if left out.

    They are as exact as the two decimals in the message.

    Attributes:
        device: CUDA ordinal.
        wanted: Bytes requested from the driver.
        total: The card.
        free: Free on the card.
        process: In use by this process.
        others: In use by other processes that the driver names.
        limit: What this process may reserve, if a memory fraction is set.
        allocated: In live blocks.
        reserved: Held from the driver.
    """

    device: int | None
    wanted: int | None
    total: int | None
    free: int | None
    process: int | None
    others: int | None
    limit: int | None
    allocated: int | None
    reserved: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCall:
    """A module's call in which a request failed, and what of it is left.

    Attributes:
        block: Position of the running block in the model's list of equal ones, from 0.
        blocks: Number of those blocks; 0 if no such list is most of what runs, or if more than
            a few layers follow it.
        result: Numbers that the layers behind the blocks return; 0 if there are none.
        result_bytes: Bytes of each of them.
        labels: Whether the call was given `labels`, from which the model computes its loss.
        cache: Addresses of keys and values that a cache of transformers holds.
        cached: Positions in that cache.
        unread: Whether the call made the cache by itself and nothing around it names one.
        offloads: Whether transformers can keep that cache on the host, and does not yet.
        heads: Heads that share one head of keys and values; 1 if none share.
        tokens_left: Further calls that transformers' generate() makes at most; None outside of it.
        samples: Rows of the batch that the call was given; None if unknown.
    """

    block: int = 0
    blocks: int = 0
    result: int = 0
    result_bytes: int = 4
    labels: bool = False
    cache: tuple[int, ...] = ()
    cached: int = 0
    unread: bool = False
    offloads: bool = False
    heads: int = 1
    tokens_left: int | None = None
    samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDecoding:
    """Images that a VAE of diffusers decodes while a request fails.

    Attributes:
        name: The program's name for it: `pipe.vae`; None if it has none.
        images: Images of the batch.
        pixels: Pixels of one image.
        tile: Pixels of one tile, if it decodes in tiles.
        pixel_bytes: Bytes that its decoder holds at most for each pixel that it decodes at once.
        sliced: Whether it decodes one image at a time.
        tiled: Whether it decodes in tiles.
    """

    name: str | None
    images: int
    pixels: int
    tile: int
    pixel_bytes: int
    sliced: bool = False
    tiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An allocation request that failed, with the state at that moment.

    It holds no tensor.

    Attributes:
        t_ns: When, nanoseconds since the epoch.
        device: CUDA ordinal.
        wanted: Bytes requested from the driver.
        free: Bytes free on the card, after torch had released what it could.
        limit: Bytes that this process may reserve; None if no memory fraction is set.
        allocated: Bytes in live blocks; None if the counters could not be read.
        reserved: Bytes held from the driver.
        stack: The Python frames, innermost first.
        layer: Path and type of the module that ran: `model.layer3.0.conv1 (Conv2d)`.
        operator: The backward node that ran: `ConvolutionBackward0`.
        progress: Fraction of the outermost module's layers that had been called, by their order.
        evaluating: Whether the outermost module was in eval mode while gradients were enabled.
        thread: Name of the thread; None for the main one and for autograd's.
        call: What is known of the outermost module's call; None outside of modules.
        decoding: What a VAE of diffusers decodes; None outside of one.
    """

    t_ns: int
    device: int
    wanted: int
    free: int
    limit: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    stack: Stack = ()
    layer: str | None = None
    operator: str | None = None
    progress: float | None = None
    evaluating: bool = False
    thread: str | None = None
    call: RunningCall | None = None
    decoding: ImageDecoding | None = None


def read_message(text: str) -> OomMessage | None:
    """Parse torch's out-of-memory message; None for any other text.

    The formats of torch 2.6 to 2.13 are supported, and the older one.
    """
    if not is_oom_text(text):
        return None
    found = {name: _bytes(re.search(pattern, text)) for name, pattern in _PATTERNS.items()}
    cached = found.pop("cached")
    if found["reserved"] is None and cached is not None and found["allocated"] is not None:
        found["reserved"] = found["allocated"] + cached
    others = [_bytes(match) or 0 for match in _OTHERS.finditer(text)]
    device = _DEVICE.search(text)
    return OomMessage(
        device=int(device[1]) if device else None, others=sum(others) if others else None, **found
    )


def _bytes(match: re.Match[str] | None) -> int | None:
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    return round(float(number) * _UNITS[unit])


def is_oom_text(text: str) -> bool:
    """Return whether an exception's text reports a full card.

    A failure to allocate the host's memory does not count.
    """
    return bool(_TEXT.search(text)) or "CUBLAS_STATUS_ALLOC_FAILED" in text


def oom_in(error: BaseException | None) -> BaseException | None:
    """Find the out-of-memory error in a chain of exceptions, or None.

    The chain consists of causes, contexts and the members of groups.
    """
    return next((found for found in exception_chain(error) if _is_oom(found)), None)


def _is_oom(error: BaseException) -> bool:
    kind = type(error)
    if kind.__name__ == "OutOfMemoryError" and kind.__module__.startswith("torch"):
        return True
    return is_raised(error, RuntimeError) and is_oom_text(message_of(error))


def error_text(error: BaseException | None) -> str | None:
    """Format an exception as one line.

    The text is stored instead of the exception, which would keep its frames' tensors alive. If its
    cause or context is an out-of-memory error, that is also named.
    """
    if error is None:
        return None
    lines = str(error).splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    inner = oom_in(error)
    return text if inner is None or inner is error else f"{text} (from {error_text(inner)})"
