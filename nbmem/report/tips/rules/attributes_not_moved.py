"""A module was moved to the CPU, and tensors in its attributes stayed.

What it sees
    A module whose weights were on the card and are in the host's memory at the end, and tensors on
    the card that only plain attributes of it hold: a list of cached features, a result of the last
    call. It speaks if they are a quarter of the peak, or a tenth where that is 1% of the card.
What it costs
    Their bytes, until the attribute is assigned anew: `module.to("cpu")` moves parameters, their
    gradients and buffers, and nothing else.
Do instead
    Empty the attribute before the module is moved: many modules have a method for it
    (`clear_cache()`). A tensor that belongs to the module is moved with it as a buffer:
    `self.register_buffer(name, tensor, persistent=False)`.
When to ignore it
    The module comes back to the card, and its next call reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.categories import Category
from nbmem.report.analysis.growth_candidates import common_place
from nbmem.report.tips.rule import Findings, Rule, exact, fmt

if TYPE_CHECKING:
    from nbmem.core.session.holders import HeldStorage
    from nbmem.report.tips.evidence import Evidence

MOVED = (Category.WEIGHTS, Category.BUFFERS, Category.GRADIENTS)
"""Categories of what moves with a module."""


def check(e: Evidence) -> Findings:
    """Find the tensors that modules left on the card."""
    told: set[int] = set()
    for name in sorted(_moved(e), key=len):  # an outer module comes before its parts
        left = [held for held in e.held if held.addr not in told and _is_left(e, held, name)]
        told.update(held.addr for held in left)
        freed = e.freed_bytes(left)
        if not left or not e.is_needless(freed):
            continue
        place = common_place(_path(held, name) or "" for held in left)
        which, it = (f"`{place}` is", "it")
        if place == name:
            which, it = f"Attributes of `{name}` are", "them"
        yield RULE.finding(
            title=f"{which} still on the card though `{name}` was moved to the CPU: empty {it} "
            f"before, {fmt(freed)} less",
            evidence=f'`{name}.to("cpu")` moves parameters and buffers only. '
            f"{len(left)} {'tensors' if len(left) > 1 else 'tensor'} that nothing else holds "
            f"stayed; the largest is `{_path(left[0], name)}` {left[0].form}.",
            saves=exact(freed),
        )


def _moved(e: Evidence) -> list[str]:
    """Return the modules whose weights were on the card, and are no longer."""
    seen = tuple(e.weight_forms)
    return [
        str(module["name"])
        for module in e.modules
        if module.get("host_bytes")
        and not module.get("bytes")
        and any(weight.startswith(f"{module['name']}.") for weight in seen)
    ]


def _path(held: HeldStorage, module: str) -> str | None:
    """Return the path from a module to a storage, None if none leads there."""
    found = (way.path for way in held.holders if way.path.startswith(f"{module}."))
    return next(found, None)


def _is_left(e: Evidence, held: HeldStorage, module: str) -> bool:
    """Return whether only attributes of a module hold a storage.

    Another variable may lead to the module: then its path has the same end.
    """
    path, row = _path(held, module), e.row_of(held)
    if path is None or row is None or e.card_ledger.category[row] in MOVED:
        return False
    end = path.removeprefix(module)
    return all(way.path.endswith(end) for way in held.holders)


RULE = Rule(name="attributes_not_moved", text=__doc__, check=check)
