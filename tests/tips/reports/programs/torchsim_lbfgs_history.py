"""After torch-sim #559: an optimizer joins its history of steps, which have graphs."""

import torch
from torch import nn

CURED = False


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 256), nn.SiLU(), nn.Linear(256, 1))

    def forward(self, positions):
        return self.net(positions).sum()


class State:
    def __init__(self, atoms):
        self.positions = torch.randn(atoms, 3, device="cuda")
        self.s_history = torch.zeros(atoms, 0, 3, device="cuda")


def forces_of(field, positions):
    energy = field(positions)
    return -torch.autograd.grad(energy, positions, create_graph=True)[0]


def lbfgs_step(field, state):
    positions = state.positions.detach().requires_grad_()
    forces = forces_of(field, positions)
    new = positions + 0.01 * forces
    s_new = (new - positions).unsqueeze(1)
    if CURED:
        s_new = s_new.detach()
    state.s_history = torch.cat([state.s_history, s_new], dim=1)[:, -8:]
    state.positions = new.detach()
    # CURE


field = Field().cuda().requires_grad_(False)
state = State(20000)
for _ in range(12):
    lbfgs_step(field, state)
