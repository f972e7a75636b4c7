"""After foundation-model-stack/fms-fsdp#152: pretraining loop of a small llama, 128k vocabulary."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CURED = False
VOCAB, SEQ, BATCH, DIM = 128256, 2048, 2, 512


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.w1, self.w2 = (
            nn.LayerNorm(DIM),
            nn.Linear(DIM, 2 * DIM),
            nn.Linear(2 * DIM, DIM),
        )

    def forward(self, x):
        return x + self.w2(torch.nn.functional.silu(self.w1(self.ln(x))))


class LLaMA(nn.Module):
    def __init__(self, nlayers=2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.layers = nn.Sequential(*[Block() for _ in range(nlayers)])
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        return self.head(self.layers(self.emb(ids)))


def loss_in_parts(model, ids, labels, ce_loss):
    hidden = model.layers(model.emb(ids)).flatten(0, 1)
    parts = zip(hidden.split(1024), labels.flatten().split(1024))
    losses = [
        checkpoint(lambda h, l: ce_loss(model.head(h), l), *part, use_reentrant=False)
        for part in parts
    ]
    return torch.stack(losses).mean()


def train(model, optimizer, steps):
    ce_loss = nn.CrossEntropyLoss()
    tracked = torch.zeros(2, device="cuda")
    for batch_idx in range(steps):
        input = torch.randint(0, VOCAB, (BATCH, SEQ), device="cuda")
        label = torch.randint(0, VOCAB, (BATCH, SEQ), device="cuda")
        optimizer.zero_grad()
        if CURED == "as told":
            loss = loss_in_parts(model, input, label, ce_loss)
        else:
            output = model(input)
            loss = ce_loss(output.view(-1, output.size(-1)), label.view(-1))
        if CURED is True:
            del output
        # CURE
        loss.backward()
        optimizer.step()
        tracked += torch.stack([loss.detach(), torch.ones_like(loss)])
    return tracked


model = LLaMA().cuda()
train(model, torch.optim.SGD(model.parameters(), lr=1e-3), 3)
