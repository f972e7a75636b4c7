"""Predictions go to the CPU one batch at a time."""

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda().eval()
predictions = []
with torch.inference_mode():
    for _ in range(10):
        predictions.append(model(torch.randn(2048, 1024, device="cuda")).detach().cpu())
predictions = torch.cat(predictions)
