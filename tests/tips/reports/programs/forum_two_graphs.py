"""After a forum question: a loop without backward needs twice what one with it needs."""

import torch
from torch import nn

CURED = False
layers = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.Sigmoid())]
model = nn.Sequential(*layers).cuda()
torch.set_grad_enabled(not CURED)
# CURE no_grad_missing
for _ in range(6):
    batch = torch.randn(4096, 2048, device="cuda")
    loss = model(batch).mean()
    # CURE second_step_peak
