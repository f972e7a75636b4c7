"""Two networks to time and trace, one CPU-bound, one GPU-bound."""

from __future__ import annotations

from collections.abc import Callable


def convolutional() -> Callable[[], None]:
    """A training step of many small kernels."""
    import torch
    from torch import nn

    def block(width: int) -> nn.Sequential:
        layers = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        return nn.Sequential(*layers)

    blocks = [block(64) for _ in range(20)]
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *blocks, *ends).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step() -> None:
        x = torch.randn(16, 3, 32, 32, device="cuda")
        y = torch.randint(0, 10, (16,), device="cuda")
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def transformer() -> Callable[[], None]:
    """A training step of few large kernels."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        x = torch.randn(8, 512, 1024, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
