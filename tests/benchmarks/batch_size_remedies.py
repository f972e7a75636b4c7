"""Compare the largest batch of offload, recomputation and unified memory.

`python -m tests.benchmarks.batch_size_remedies [CARD]`: torchvision's ResNet-50 in float32, SGD
with momentum, 224 x 224, three steps, on a virtual card (it needs torchvision, and no card).
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbmem
from nbmem import virtual
from nbmem.estimates.programs import programs
from nbmem.estimates.runs.probe_run import Request, probe

PROGRAM = """
import torch
from torch.nn import functional
from torchvision import models

batch = 64
model = models.resnet50(weights=None).cuda()
optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
for _ in range(3):
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MARGIN = 0.02
REMEDIES = ("checkpoint", "offload", "unified")
BEYOND = (1.25, 1.5, 2.0)
"""Batches at which each is priced, by the largest that fits as it is."""


def main() -> None:
    card = virtual.find_card(" ".join(sys.argv[1:]) or "T4")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(PROGRAM)
        program = programs.script(str(path), vary="batch")
        margin = int(card.total_bytes * MARGIN)
        base = nbmem.fit(program, card.key, step=8).best
        print(f"{card.name}: largest batch as it is {base}", flush=True)
        for remedy in REMEDIES[:2]:
            found = nbmem.fit(program, card.key, step=8, remedies=(remedy,))
            print(f"  with {remedy}: {found.best}", flush=True)
        for batch in (int(base * part) // 8 * 8 for part in BEYOND):
            for remedy in REMEDIES:
                wanted = Request(card=card, margin=margin, value=batch, remedies=(remedy,))
                reply = probe(program, wanted)
                fits = "fits" if reply.probe.fits else "does not fit"
                print(f"  batch {batch}, {remedy}: {fits}; {reply.price}", flush=True)


if __name__ == "__main__":
    main()
