"""Measure the batch that fits with saved activations on the host.

`python -m tests.benchmarks.offload_batch [NETWORK]`: torchvision's ResNet-50 and ResNet-152 (so it
needs a CUDA build of torch; no driver and no card), SGD with momentum, two steps, on a virtual V100
with 16 GiB.
"""

from __future__ import annotations

import sys
import time

import nbmem

CARD = "V100 16GB"
STEP = 8
NETWORKS = {"resnet50": 160, "resnet152": 64}
"""With a batch that is about right, to begin the search at."""
REMEDIES = ((), ("offload",), ("checkpoint",), ("autocast", "offload"))


def network(name):
    def train(batch):
        import torch
        from torch.nn import functional
        from torchvision import models

        model = getattr(models, name)(weights=None).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
        for _ in range(2):
            images = torch.randn(batch, 3, 224, 224, device="cuda")
            labels = torch.randint(0, 1000, (batch,), device="cuda")
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def main() -> None:
    print("| network | | largest batch | |\n|---|---|--:|--:|", flush=True)
    chosen = sys.argv[1:] or list(NETWORKS)
    for name in chosen:
        base = None
        for remedies in REMEDIES:
            begun = time.perf_counter()
            found = nbmem.fit(
                network(name), CARD, start=NETWORKS[name], step=STEP, between=(STEP, 4096),
                remedies=remedies,
            )  # fmt: skip
            base = base or found.best
            how = " + ".join(remedies) or "as it is"
            print(f"| {name} | {how} | {found.best} | {found.best / base:.1f}x |", flush=True)
            print(f"{time.perf_counter() - begun:.0f} s", found.total, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
