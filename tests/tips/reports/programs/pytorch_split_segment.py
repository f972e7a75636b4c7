"""After a report on half of the memory that cannot be used: a large tensor comes a second time."""

# CURE
import torch
from torch import nn

CURED = False
joint = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1024)).cuda()
encoder = nn.Sequential(*(nn.Linear(512, 512) for _ in range(20))).cuda()
shape = (2200, 1024, 1024)  # a transducer's lattice: time x labels x words
if CURED:
    lattice = torch.empty(shape, device="cuda")
for _ in range(2):
    frames = torch.randn(8192, 512, device="cuda")
    states = []
    for layer in encoder:
        frames = layer(frames)
        states.append(frames)
    if not CURED:
        lattice = torch.empty(shape, device="cuda")
    with torch.no_grad():
        lattice.zero_()
    if not CURED:
        del lattice
    joint(states[-1]).sum().backward()
    memory = [state.detach().clone() for state in states]
