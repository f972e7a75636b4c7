"""Part `balance`: a traced run's ledger beside nvidia-smi."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.card.parts import Case


def cases() -> Iterator[Case]:
    """Yield the part's single case, a small training."""
    yield "training", training


def training() -> dict[str, Any]:
    """Train a little, and read the ledger, torch's counters and nvidia-smi."""
    import torch

    import nbmem.api.tracing as nbmem
    from nbmem.core.session.categories import Category
    from tests.card.networks import convolutional

    step = convolutional()
    with nbmem.trace("train", namespace={}) as trace:
        for _ in range(3):
            step()
    report = trace.report()
    smi = nvidia_smi()
    ledger = report.ledger_at_end
    ledger.check(allocated=torch.cuda.memory_allocated(), reserved=torch.cuda.memory_reserved())
    return {
        "held": {
            category.name.lower(): ledger[category] for category in Category if ledger[category]
        },
        "sum": sum(ledger.held),
        "process": ledger.process,
        "peak": report.peak.allocated,
        "notes": list(report.notes),
        "nvidia-smi": smi,
    }


def nvidia_smi() -> dict[str, str] | str:
    """Return the memory of card and process, as nvidia-smi prints it."""
    found = {}
    queries = {
        "card": "--query-gpu=memory.total,memory.used,memory.reserved",
        "processes": "--query-compute-apps=pid,used_memory",
    }
    for name, query in queries.items():
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
        try:
            found[name] = subprocess.run(
                command, capture_output=True, text=True, timeout=20, check=True
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError) as err:
            return f"nvidia-smi does not answer ({type(err).__name__})"
    found["pid"] = str(os.getpid())
    return found
