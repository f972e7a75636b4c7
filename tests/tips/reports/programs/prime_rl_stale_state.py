"""After prime-rl #2154: the optimizer's state moves to the host, and the loaded one stays."""

import os
import tempfile

import torch
from torch import nn

CURED = False


def build():
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(24)]).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def move_states(optimizer, device):
    for state in optimizer.state.values():
        for key, value in state.items():
            if key != "step":
                state[key] = value.to(device)


def step(model, optimizer):
    model(torch.randn(16, 2048, device="cuda")).square().mean().backward()
    move_states(optimizer, "cuda")
    optimizer.step()
    move_states(optimizer, "cpu")
    optimizer.zero_grad()


class App:
    def __init__(self):
        self.model, self.optimizer = build()

    def load(self, path):
        self.state_dict = torch.load(path, map_location="cuda")
        self.model.load_state_dict(self.state_dict["model"])
        self.optimizer.load_state_dict(self.state_dict["optimizer"])
        move_states(self.optimizer, "cpu")
        if CURED:
            self.state_dict.clear()


with tempfile.TemporaryDirectory() as folder:
    model, optimizer = build()
    step(model, optimizer)
    path = os.path.join(folder, "checkpoint.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    del model, optimizer
    app = App()
    app.load(path)
for _ in range(3):
    step(app.model, app.optimizer)
