"""After a report on the second batch: it needs more than the first one."""

import torch
from torch import nn

CURED = False


class SkipNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Conv2d(3 if i == 0 else 32, 32, 3, padding=1) for i in range(4)
        )
        self.score = nn.Conv2d(32, 21, 1)

    def forward(self, x):
        skips = []
        for stage in self.stages:
            x = stage(x).relu_()
            skips.append(x)
        return self.score(nn.functional.max_pool2d(x, 4)), skips


model = SkipNet().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss(ignore_index=255)
for _ in range(4):
    image = torch.randn(1, 3, 1024, 1024, device="cuda")
    label = torch.randint(21, (1, 256, 256), device="cuda")
    optimizer.zero_grad()
    out = model(image)
    loss = criterion(out[0], label)
    loss.backward()
    optimizer.step()
    if CURED:
        del out, loss
    # CURE
