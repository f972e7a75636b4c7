"""PPO's reference differs from the policy after the first step, and is used."""

import copy

import torch
from torch import nn

policy = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(8)]).cuda()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters())
for _ in range(4):
    x = torch.randn(1024, 1536, device="cuda")
    with torch.no_grad():
        wanted = reference(x).log_softmax(-1)
    got = policy(x).log_softmax(-1)
    loss = nn.functional.kl_div(got, wanted, log_target=True, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
