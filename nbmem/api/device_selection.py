"""Select the card that a notebook or a script runs on.

Use a real card if there is one, else a virtual one. A virtual card with live tensors is only
deactivated by a typed `%nbmem gpu off`, which reports what is lost.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.capture.devices.nvml import NvmlProbe
from nbmem.capture.torch_cuda import import_torch, initialized_torch
from nbmem.core.errors import ProbeUnavailableError, UsageError
from nbmem.core.units import MIB, format_bytes

if TYPE_CHECKING:
    from nbmem.capture.devices.nvml_readings import NvmlCard
    from nbmem.virtual.cards import Card
    from nbmem.virtual.hardware.gpu import VirtualGPU

DEFAULT = "H100 80GB"
"""The virtual card that is used if none was named."""
AUTO = "auto"
MAX_NAMED = 4
"""Names in the sentence on a card's live tensors."""
PATIENCE_S = 2.0
"""Time limit of the search for these names."""

NO_TORCH = (
    "torch is not installed in this environment, so there is no GPU memory to trace and no card "
    f"can stand in. Install it beside nbmem: {sys.executable} -m pip install torch."
)


class Choice(NamedTuple):
    """The card that is used from here on, and a sentence on it."""

    virtual: bool
    sentence: str


def use(name: str, *, defer: bool = False, names: Mapping[str, Any] | None = None) -> Choice:
    """Select virtual cards by name, or with `auto` a real one.

    "2xT4" is two cards. `auto` selects a real card if torch has one here, else a virtual one. Cards
    in use stay active, with all tensors on them.

    Args:
        name: The cards' name.
        defer: On a virtual card, write large tensors on the CPU only when they are read.
        names: The notebook's names, to describe live tensors; None: those of `__main__`.

    Raises:
        NbmemError: There is no such card, torch is missing, or a real card is in use. Also if a
            virtual card has live tensors, which would be lost.
    """
    from nbmem import virtual
    from nbmem.engine import process
    from nbmem.virtual import card_names

    if import_torch() is None:
        raise ProbeUnavailableError(NO_TORCH)
    if process.active():
        return _on_stand_in(name)
    if name.lower() != AUTO:
        wanted = virtual.find_cards(name)
        if wanted == tuple(gpu.card for gpu in virtual.gpus()):
            here = card_names.described(wanted)
            return Choice(virtual=True, sentence=f"Already on {here}: nothing has changed.")
        require_no_live_tensors(names)
        virtual.activate(name, defer=defer)
    if virtual.active() is not None:
        return Choice(virtual=True, sentence=f"Running on {_in_use()}")
    real = real_card()
    if real is not None:
        return Choice(virtual=False, sentence=f"Running on the {real} of this machine.")
    virtual.activate(DEFAULT, defer=defer).chosen = False
    return Choice(
        virtual=True,
        sentence=f"There is no GPU here, so {_in_use(' stands in')}",
    )


def _on_stand_in(name: str) -> Choice:
    """Answer a choice of cards in a process whose cards are the engine's.

    Raises:
        UsageError: Other cards are wanted.
    """
    from nbmem.engine import process
    from nbmem.virtual import card_names

    process.follow_values()
    here = card_names.find_cards(",".join(process.cards()))
    if name.lower() != AUTO and card_names.find_cards(name) != here:
        raise UsageError(
            f"This process is on {card_names.described(here)} by the engine torch, which is "
            "chosen before Python starts. Start another: `nbmem run --engine torch --gpu NAME "
            "SCRIPT`, or a kernel that `nbmem kernel install --engine torch --gpu NAME` adds."
        )
    return Choice(
        virtual=True,
        sentence=(
            f"Running on {card_names.described(here)}: its memory is accounted for by torch's own "
            "code (engine torch), and values are computed of small tensors alone."
        ),
    )


def use_world(
    name: str, ranks: int, *, rank: int = 0, names: Mapping[str, Any] | None = None
) -> Choice:
    """Run as one rank of a world of virtual cards from here on.

    The process is set up as torchrun would start it.

    Args:
        name: A card, or a machine with several equal cards (`8xH100`).
        ranks: Ranks of the world.
        rank: The rank of this process.
        names: As for `use`.

    Raises:
        NbmemError: There is no such card, world or rank, torch is missing, or a real card is in
            use. Also if a virtual card has live tensors, which would be lost.
    """
    from nbmem import virtual
    from nbmem.core.session.ranks import require_inside
    from nbmem.engine import process

    if import_torch() is None:
        raise ProbeUnavailableError(NO_TORCH)
    from nbmem.virtual import virtual_worlds
    from nbmem.virtual.patches.distributed.spawn import enter_rank

    if process.active():
        raise UsageError("The engine torch has no worlds of ranks. Use a kernel without it.")
    place = virtual_worlds.layout(name, ranks)
    require_inside(rank, place.world)
    require_no_live_tensors(names)
    virtual.activate(place.cards)
    enter_rank(place, rank)
    return Choice(
        virtual=True,
        sentence=(
            f"This notebook is rank {rank} of {place.world}, on {_in_use()} Its card is "
            f"cuda:{rank % place.local} (LOCAL_RANK); init_process_group('nccl') makes its group. "
            "The other ranks run nowhere and are taken to do what it does."
        ),
    )


def _in_use(verb: str = "") -> str:
    """Describe the active virtual cards and what is modelled on them."""
    from nbmem.virtual import gpus
    from nbmem.virtual.card_names import described

    cards = [gpu.card for gpu in gpus()]
    whose = "its memory is accounted for as the card would"
    if len(cards) > 1:
        whose = "their memory is accounted for as the cards would"
    return f"{described(cards)}{verb}: {whose}, and no values are computed."


def stop_virtual(names: Mapping[str, Any] | None = None) -> str:
    """Deactivate the virtual cards; return a sentence on what is lost.

    Args:
        names: As for `use`.
    """
    from nbmem import virtual
    from nbmem.engine import process

    cards = virtual.gpus()
    if not cards and process.active():
        return "The card is the engine torch's, and stays until this process ends."
    if not cards:
        return "No virtual card is in use; nothing has changed."
    lost = _live_tensors_text(names)
    virtual.deactivate()
    what = f"{cards[0].name} is" if len(cards) == 1 else "cards are"
    out = f"The virtual {what} out; torch.cuda is as it was before."
    return f"{out} What lived there cannot be used any more: {lost}." if lost else out


def require_no_live_tensors(names: Mapping[str, Any] | None = None) -> None:
    """Raise if tensors live on the virtual cards, which would be lost.

    Args:
        names: As for `use`.

    Raises:
        UsageError: There are live tensors. The text names the largest, and says what can be done.
    """
    living = _live_tensors_text(names)
    if living:
        from nbmem import virtual
        from nbmem.virtual.card_names import described

        here = described(gpu.card for gpu in virtual.gpus())
        raise UsageError(
            f"Nothing has changed: to leave {here} would lose what lives there, {living}. "
            "Free that first (`%nbmem free NAME`; `%nbmem top` lists all of it), or give it up "
            "with `%nbmem gpu off`, and choose again."
        )


def _live_tensors_text(names: Mapping[str, Any] | None) -> str:
    """Describe the tensors on the virtual cards; empty without any.

    An example is `134.0 MiB (model 44.7 MiB, ...)`. The bytes are those of all tensors. Names are
    given only for tensors that a heap walk finds.
    """
    from nbmem import virtual

    total = virtual.live_bytes()
    if not total:
        return ""
    from nbmem.capture.heap import walk

    sizes: Counter[str] = Counter()
    found = walk(vars(sys.modules["__main__"]) if names is None else names, budget_s=PATIENCE_S)
    for storages in found.by_device.values():
        for held in storages:
            sizes[held.holders[0].root] += held.size
    sizes_text = [f"{name} {format_bytes(size)}" for name, size in sizes.most_common(MAX_NAMED)]
    rest = total - sum(size for _, size in sizes.most_common(MAX_NAMED))
    if sizes_text and rest > 0:
        sizes_text.append(f"others {format_bytes(rest)}")
    return f"{format_bytes(total)} ({', '.join(sizes_text)})" if sizes_text else format_bytes(total)


def real_card() -> str | None:
    """Return the name of the first real card that torch can use, or None.

    NVML and torch's build are queried, and torch.cuda only without NVML. A call of torch.cuda would
    start the driver in this process, which then could not fork workers that use the card.
    """
    torch = import_torch()
    if torch is None or (torch.version.cuda is None and torch.version.hip is None):
        return None
    try:
        cards = NvmlProbe().cards()
    except ProbeUnavailableError:
        return "GPU" if torch.cuda.is_available() else None
    return cards[0].name if cards else None


class CardHere(NamedTuple):
    """A card that torch could use now.

    `total` is in bytes: the host's memory if the card shares it (`shared`).
    """

    ordinal: int
    name: str
    total: int | None
    virtual: bool
    shared: bool = False


def cards_here() -> tuple[CardHere, ...]:
    """List the virtual cards in use, else the cards that NVML sees.

    Empty if there are none.
    """
    virtual = sys.modules.get("nbmem.virtual")
    standing = virtual.gpus() if virtual is not None else ()
    if standing:
        return tuple(
            CardHere(gpu.index, gpu.name, gpu.card.nvml_total, virtual=True) for gpu in standing
        )
    from nbmem.engine import process

    nvml, stands_in = NvmlProbe(), process.active()
    try:
        cards = nvml.cards()
    except ProbeUnavailableError:
        return ()
    nvml.close()
    return tuple(
        CardHere(card.index, card.name, card.total, virtual=stands_in, shared=card.shared)
        for card in cards
    )


def choices() -> tuple[Card, ...]:
    """Return the virtual cards that `use` would activate now.

    Empty if a real card is in use already.
    """
    from nbmem.engine import process
    from nbmem.virtual import active
    from nbmem.virtual.cards import CARDS

    free = not process.active() and initialized_torch() is None
    return CARDS if active() is not None or free else ()


def table() -> str:
    """Format a table of every card that can be used here."""
    from nbmem import virtual
    from nbmem.engine import process
    from nbmem.virtual.cards import CARDS

    active: Sequence[CardHere | VirtualGPU] = virtual.gpus()
    if process.active():
        active = cards_here()
    width, long = max(len(card.key) for card in CARDS), max(len(card.name) for card in CARDS)
    lines = ["Real cards", *_real_lines(hidden=bool(active)), "", "Virtual cards"]
    for card in CARDS:
        here = [f"cuda:{at}" for at, gpu in enumerate(active) if gpu.name == card.name]
        use = f"  in use as {', '.join(here)}" if len(active) > 1 else "  in use"
        total, context = format_bytes(card.nvml_total), _context(card)
        row = f"  {card.key:<{width}}  {card.name:<{long}}  {total:>10}  context {context:<10}"
        lines.append(row + use if here else row.rstrip())
    lines += [
        "",
        "A context is what a process holds before its first tensor, in MiB: recorded on an H100,",
        "estimated for the others from what is published of five of them.",
        "",
        "Use one with `%nbmem gpu NAME` in a notebook or `nbmem run --gpu NAME SCRIPT`; 2xT4 is a",
        "machine with two of them.",
    ]
    return "\n".join(lines)


def _context(card: Card) -> str:
    """Format the least and most MiB of a bare context.

    One figure if it was recorded.
    """
    low, high = (size // MIB for size in card.context_band)
    return str(low) if low == high else f"{low}..{high}"


def _real_lines(*, hidden: bool) -> list[str]:
    """Format the cards that NVML sees, or the reason for none."""
    if hidden:  # NVML reports the virtual cards now
        return ["  not to be seen while a virtual card is in use"]
    try:
        cards = NvmlProbe().cards()
    except ProbeUnavailableError as err:
        return [f"  none: {str(err).partition('. ')[0]}"]
    return [
        f"  {card.index}  {card.name}  {_size(card)}  driver {card.driver}" for card in cards
    ] or ["  none"]


def _size(card: NvmlCard) -> str:
    """Format a real card's memory, and whether it is the host's."""
    if card.total is None:
        return "size not said by NVML"
    return format_bytes(card.total) + (" shared with the host" if card.shared else "")
