"""Windows put a part of the card's memory into the host's.

What it sees
    torch held more than the card has, or more than was in use of it, under Windows' driver model
    WDDM: the driver does not run out of memory there, it takes the host's.
What it costs
    Time: the card reaches the host's memory over the bus, and a step takes many times as long.
Do instead
    Have the driver say that memory ran out, and nbmem says what was too large. In the NVIDIA
    Control Panel, under Manage 3D settings, Program settings, choose the python.exe of this
    environment and set "CUDA - Sysmem Fallback Policy" to "Prefer No Sysmem Fallback"
    (https://nvidia.custhelp.com/app/answers/detail/a_id/5490); then start the kernel again. In WSL
    the setting has no effect (https://github.com/microsoft/WSL/issues/11050): make the batch or the
    model smaller there.
When to ignore it
    A slow run is better than none, as for a model that is loaded once and used little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.report.tips.rule import Findings, Rule, exact, fmt

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Find the card's memory that Windows put into host memory."""
    info = e.trace.info
    if not info.wddm or not e.worth(info.spilled_bytes):
        return
    spilled = fmt(info.spilled_bytes)
    yield RULE.finding(
        title=f"{spilled} did not fit on the card and slowed it down from the host's memory: "
        'set "CUDA - Sysmem Fallback Policy" to "Prefer No Sysmem Fallback"',
        evidence=f"The card has {fmt(info.own_bytes)}, torch held up to "
        f"{fmt(e.report.peak.reserved)}, and at least {spilled} of it lay in the host's memory at "
        "one time. With that setting of the NVIDIA Control Panel for this python.exe the driver "
        "says that memory ran out (in WSL it has no effect).",
        saves=exact(info.spilled_bytes),
    )


RULE = Rule(name="spilled_memory", text=__doc__, check=check)
