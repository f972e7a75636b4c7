"""How much larger a batch fits with saved activations on the host.

`python -m tests.benchmarks.offload_batch`:
ResNet-50 and ResNet-152 (torchvision, so a CUDA build of torch; no driver and no card), SGD with
momentum, two steps, on a virtual V100 with 16 GiB.
"""

from __future__ import annotations

import sys
import time

import nbmem

CARD = "V100 16GB"
NETWORKS = ("resnet50", "resnet152")
REMEDIES = ((), ("checkpoint",), ("offload",), ("autocast", "offload"))


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
    print(f"| network | {' | '.join('+'.join(r) or 'as it is' for r in REMEDIES)} |")
    for name in NETWORKS:
        row, begun = [], time.perf_counter()
        for remedies in REMEDIES:
            found = nbmem.fit(network(name), CARD, start=64, step=1, remedies=remedies)
            row.append(found.best)
        times = " | ".join(f"{best} ({best / row[0]:.1f}x)" for best in row)
        print(f"| {name} | {times} |", flush=True)
        print(f"{name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
