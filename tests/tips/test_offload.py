"""Offloading is a last resort, and none where the program went on with less."""

import pytest

pytest.importorskip("torch", reason="the programs are torch programs")

SEARCH = """
import torch
from torch import nn

net = nn.Sequential(*(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
                      for _ in range(4))).cuda()

def step(rows):
    net(torch.randn(rows, 512, device="cuda")).square().mean().backward()
    net.zero_grad()

rows = 1 << 16
while True:
    try:
        step(rows)
        rows *= 2
    except torch.OutOfMemoryError:
        break
step(rows // 4)
"""


def test_a_search_for_the_batch_that_went_on_is_not_short_of_memory(run):
    trace, _ = run(SEARCH, card="T4")
    assert trace.report().ooms
    assert "offload" not in {tip.rule for tip in trace.report().findings}
    assert "offload" in {tip.rule for tip in trace.all_tips()}
