"""Worlds of virtual ranks: their machines, cards and environments."""

from __future__ import annotations

from typing import NamedTuple

from nbmem.core.errors import UsageError
from nbmem.virtual.card_names import find_cards

CARD = "H100 80GB"
PER_NODE = 8
"""Cards of a node if their number is not given: a DGX's."""


class VirtualWorld(NamedTuple):
    """A distributed run on virtual cards.

    Attributes:
        world: Ranks.
        local: Ranks of a node, each with a card of its own.
        cards: A node's cards, as `--gpu` takes them.
    """

    world: int
    local: int
    cards: str


def layout(gpu: str, world: int, nodes: int | None = None) -> VirtualWorld:
    """Lay out a world of ranks on machines.

    Args:
        gpu: Name of a card; a machine of several (`8xH100`) sets the number of cards of a node.
        world: Ranks.
        nodes: Machines; None for as many as needed, with 8 cards each.

    Raises:
        UsageError: There is no such card, or the ranks do not fill the machines.
    """
    if world < 1:
        raise UsageError(f"--ranks {world}: a world has one rank at least.")
    name = CARD if gpu.lower() == "auto" else gpu
    cards = find_cards(name)
    if len(cards) > 1:
        if world % len(cards) or (nodes and nodes * len(cards) != world):
            raise UsageError(
                f"{world} ranks do not fill machines of {len(cards)} cards ({name}): give --ranks "
                "a multiple of them."
            )
        return VirtualWorld(world, len(cards), name)
    nodes = nodes or -(-world // PER_NODE)
    if nodes < 1 or world % nodes:
        raise UsageError(
            f"{world} ranks cannot be shared out evenly over {nodes} machines: give --nodes a "
            "number that divides them."
        )
    local = world // nodes
    find_cards(f"{local}x{name}")  # raises if there is no such machine
    return VirtualWorld(world, local, f"{local}x{name}")


def environment(place: VirtualWorld, rank: int, run: str) -> dict[str, str]:
    """Return the environment variables that torchrun sets for a rank.

    Args:
        place: The world.
        rank: The rank.
        run: An id that is different for each start of the program.
    """
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(place.world),
        "LOCAL_RANK": str(rank % place.local),
        "LOCAL_WORLD_SIZE": str(place.local),
        "GROUP_RANK": str(rank // place.local),
        "GROUP_WORLD_SIZE": str(place.world // place.local),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": run,
    }
