"""After a report on text generation: each token takes more than the one before."""

import torch
from torch import nn

CURED = False


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5000, 1024)
        self.layers = nn.ModuleList(nn.Linear(1024, 3072) for _ in range(2))
        self.lm_head = nn.Linear(1024, 5000, bias=False)

    def forward(self, tokens, past):
        hidden, present = self.embed(tokens), []
        for index, layer in enumerate(self.layers):
            q, k, v = layer(hidden).chunk(3, dim=-1)
            if past is not None:
                k = torch.cat((past[index][0], k), dim=1)
                v = torch.cat((past[index][1], v), dim=1)
            present.append((k, v))
            hidden = hidden + (q @ k.transpose(1, 2) / 32).softmax(-1) @ v
        return self.lm_head(hidden), present


model = Model().cuda().eval()
context, past = torch.randint(5000, (16, 200), device="cuda"), None
torch.set_grad_enabled(not CURED)
# CURE no_grad_missing
for _ in range(25):
    output, past = model(context, past)
    context = output[:, -1:].argmax(-1)
# CURE graph_kept
