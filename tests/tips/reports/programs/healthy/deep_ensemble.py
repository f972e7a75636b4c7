"""Five models are trained one after another and vote at the end."""

import torch
from torch import nn

models = []
for seed in range(5):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(1024, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    models.append(model.eval())
with torch.no_grad():
    for _ in range(3):
        x = torch.randn(1024, 1024, device="cuda")
        spread = torch.stack([model(x) for model in models]).std(0).mean().item()
