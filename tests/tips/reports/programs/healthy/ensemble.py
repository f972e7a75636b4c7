"""Five models that all vote."""

import torch
from torch import nn

models = [nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 100)) for _ in range(5)]
models = [model.cuda().eval() for model in models]
with torch.no_grad():
    for _ in range(4):
        x = torch.randn(4096, 2048, device="cuda")
        votes = torch.stack([model(x).softmax(-1) for model in models]).mean(0).argmax(-1).cpu()
