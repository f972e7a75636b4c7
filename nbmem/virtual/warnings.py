"""Notes on what a virtual card cannot answer, and their warning category.

Each note is given once per activation.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nbmem.core.runtime.self_test import losses
from nbmem.core.units import format_bytes

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card


class NbmemWarning(UserWarning):
    """A difference between this run and one on a real card."""


def warn(text: str, level: int) -> None:
    """Warn of a difference to a real card, which is no program error.

    Where warnings are errors only the note in the report remains, unless a filter names this
    category.

    Args:
        text: The note.
        level: The caller's `stacklevel`.

    Raises:
        NbmemWarning: A filter names the category.
    """
    try:
        warnings.warn(text, NbmemWarning, stacklevel=level + 1)
    except NbmemWarning:
        if any(
            action == "error" and kind is NbmemWarning for action, _, kind, *_ in warnings.filters
        ):
            raise


VALUES = (
    "This is a virtual GPU: tensors on it have shapes and take memory, but no values are computed. "
    "What the program reads from the card (.item(), .cpu(), print) are plausible stand-ins."
)
COMPILE = (
    "On a virtual GPU torch.compile is planned for Inductor alone, and with torch 2.11 or newer: "
    "this function runs eagerly, and its figures are those of eager mode."
)
COMPILE_LATER = (
    "Compiled functions ran eagerly, for planning them takes long. `nbmem run --gpu` and a traced "
    "cell plan them as Inductor does, and so do fit and plan behind their first answer."
)
TRITON = (
    "Triton's kernels are not run on a virtual GPU: their launches pass, take no memory beside "
    "their arguments, and leave values there that are not known. Which configuration a tuner finds "
    "fastest is not known either: the first one is taken."
)


def unknown_scratch(kernel: str) -> str:
    """Format the note on a Triton kernel with uncounted scratch memory."""
    return (
        f"The scratch memory of the Triton kernel {kernel} (triton.set_allocator) is not counted. "
        "It is known once the kernel is compiled. Here that failed, or others had taken too long."
    )


def uncompiled(extension: str) -> str:
    """Format the note on an extension whose CUDA code is not compiled."""
    return (
        f"Cannot compile the CUDA extension {extension} for a virtual GPU: its kernels cannot run "
        "there, and no rule says what they allocate. Use a path of the package without it, or "
        "bring a rule (docs/questions/kernels.md)."
    )


RAW_KERNELS = (
    "Kernels from torch.cuda._compile_kernel are not run on a virtual GPU: their launches pass, "
    "take no memory beside their arguments, and leave values there that are not known."
)
UNCACHED = (
    "caching_allocator_enable(False) is remembered on a virtual GPU, and its allocator goes on "
    "caching: what a card would give back at once is shown as cached."
)
SPAWN = (
    "A virtual GPU is in one process alone: of the processes that torch.multiprocessing.spawn "
    "would start, one for each card, the first one's part runs here, and the others are taken to "
    "do the same."
)
OWN_STATE = (
    "FSDP gathers the optimizer's state from all ranks to save it. The others run nowhere, so this "
    "rank's own part stands for all: what the gathering takes for a moment is not counted."
)
NOT_ASKED = (
    "cuDNN is not installed to say its kernels for these convolutions: their work areas are "
    "estimates, and may be gigabytes too small. `pip install nvidia-cudnn-cu13==9.20.0.48` lets it "
    "be asked; no GPU is needed."
)
_UNPLANNED = "torch.compile could not be planned for"
_UNKNOWN = "depends on values, which a virtual GPU does not compute"
_BOUND = "so memory from here on is an upper bound"
NONZERO = (
    f"How many elements nonzero, where(mask) or x[mask] finds {_UNKNOWN}: all are assumed, "
    f"{_BOUND}. torch.nonzero_static(mask, size=...) says how many."
)
MASKED_SELECT = f"How many elements masked_select finds {_UNKNOWN}: all are assumed, {_BOUND}."
UNIQUE = f"How many different values unique finds {_UNKNOWN}: all are assumed to differ, {_BOUND}."
COALESCE = (
    f"How many different places coalesce finds {_UNKNOWN}: all are assumed to differ, {_BOUND}."
)
SPARSE_PRODUCT = (
    f"How many elements the product of two sparse matrices has {_UNKNOWN}: it is "
    "assumed that their places are random."
)
REPEAT = (
    f"How often repeat_interleave repeats {_UNKNOWN}: once each is assumed, which may be too few. "
    "Give their sum as output_size=..."
)
NMS = f"How many boxes nms keeps {_UNKNOWN}: all are assumed, {_BOUND}."
BINS = (
    f"How many bins bincount makes {_UNKNOWN}: minlength is assumed, which may be too few. "
    "A larger minlength=... says how many."
)
COUNTS = (
    f"How many elements fall into each bin of bincount or histc {_UNKNOWN}: the same number in "
    "each is assumed."
)
LOOP = (
    f"A condition that {_UNKNOWN} was asked for again and again at one line: in case a loop waits "
    "for it, the opposite is answered from time to time."
)

NO_END = (
    f"Which word ends a text {_UNKNOWN}: generate() writes as many tokens as max_new_tokens or "
    "max_length allow. On a card it may end sooner, with a smaller KV cache."
)


def limits_of(card: Card) -> list[str]:
    """Return the limits of a card that are known from the start."""
    known = card.arch.capability
    own = [] if known == card.capability else [unlisted(card.capability, known)]
    return [*own, *losses("virtual card")]


def unlisted(capability: tuple[int, int], like: tuple[int, int]) -> str:
    """Format the note on a compute capability without a record."""
    asked, taken = ("{}.{}".format(*pair) for pair in (capability, like))
    return (
        f"nbmem does not know compute capability {asked}: cuBLAS's workspaces and the scratch "
        f"memory of sorts and sums are taken to be those of {taken}."
    )


def host_code_failed(operator: str, err: BaseException) -> str:
    """Format the note on a library's operator that cannot run here."""
    return (
        f"The host code of {operator} cannot run on a virtual GPU ({type(err).__name__}: "
        f"{str(err)[:200]}): its fake implementation says the results, and scratch memory that it "
        "takes is not counted."
    )


def unplanned(region: str, why: str) -> str:
    """Format the note on a compiled region that runs eagerly.

    It names the region in the program and quotes the compiler.
    """
    return (
        f"{_UNPLANNED} {region}, so it runs eagerly and its figures are "
        f"those of eager mode: {why[:200]}"
    )


def eager_peak(nbytes: int, beside: int = 0) -> str:
    """Format the note on the peak of a compiled run in eager mode.

    Args:
        nbytes: So high at the most.
        beside: What a region returns beside its loss, which is in it.
    """
    least = f"{format_bytes(nbytes - beside)} to " if beside else ""
    which = ", by whether the program still holds what is returned beside the loss" * bool(beside)
    return (
        f"Without torch.compile the peak of live bytes would be about {least}"
        f"{format_bytes(nbytes)}{which}: each compiled region's graph was run once as it is, on an "
        "empty card of its own."
    )


def eagerly_unknown(why: str) -> str:
    """Format the note on an unknown eager peak, and how to measure it."""
    return (
        "What this takes without torch.compile is not known beside the run "
        f"({why[:200]}); the environment variable TORCH_COMPILE_DISABLE=1 makes it run so."
    )


def is_unplanned(note: str) -> bool:
    """Return whether a note is about a compiled region that ran eagerly."""
    return note == COMPILE or note.startswith(_UNPLANNED)


def on_figures(notes: Iterable[str]) -> list[str]:
    """Return the notes that affect a report's figures.

    Missing values do not: memory is the same.
    """
    return [note for note in notes if note != VALUES]
