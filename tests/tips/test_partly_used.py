"""Tensors that are computed whole and used in part, by what operators read on a virtual card."""

import pytest

torch = pytest.importorskip("torch", reason="the programs are torch programs")

RAYS = """
net = nn.Linear(3, 1).cuda()
pose = torch.zeros(3, 3, device="cuda", requires_grad=True)
grid = torch.zeros(1 << 22, 3, device="cuda")
def all_rays(grid):
    turned = grid @ pose
    return turned - 1.0
def step(chosen):
    {compute}
    net(rays).sum().backward()
for _ in range(3):
    step(torch.arange(1024, device="cuda"))
"""
WHOLE = RAYS.format(compute="rays = all_rays(grid)[chosen]")
CHOSEN = RAYS.format(compute="rays = all_rays(grid[chosen])")
IN_TURNS = """
weight = torch.zeros(3, 3, device="cuda")
def turned(points):
    return points @ weight
with torch.no_grad():
    points = turned(torch.zeros(1 << 22, 3, device="cuda"))
    sums = [points[at : at + (1 << 19)].sum() for at in range(0, 1 << 22, 1 << 19)]
    del points
"""
LARGEST = """
queries, keys = torch.zeros(4096, 64, device="cuda"), torch.zeros(16384, 64, device="cuda")
def best(queries):
    scores = queries @ keys.T
    return scores.topk(8).values
for _ in range(2):
    best(queries)
"""
SAMPLED = """
def sample():
    table = torch.zeros(1 << 22, 16, device="cuda")
    return table[:8] + 1
for _ in range(2):
    sample()
"""


def of_rule(report):
    return [tip for tip in report.findings if tip.rule == "partly_used"]


def test_what_a_function_computes_whole_and_is_indexed(report_of):
    report, cured = report_of(WHOLE), report_of(CHOSEN)
    (tip,) = of_rule(report)
    assert tip.title.startswith("`return turned - 1.0` ")
    assert "in all_rays() computes 48.0 MiB of which 12.0 KiB are used" in tip.title
    saved = report.peak.allocated - cured.peak.allocated
    assert tip.low <= saved <= tip.high * 1.01
    assert tip.low > 0.95 * saved
    assert of_rule(cured) == []


@pytest.mark.parametrize("program", [IN_TURNS, LARGEST, SAMPLED])
def test_silent_where_the_whole_is_used_or_nothing_is_computed(report_of, program):
    assert of_rule(report_of(program)) == []
