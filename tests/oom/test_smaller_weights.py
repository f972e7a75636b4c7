"""A model that does not fit the card: what its weights take in fewer bits."""

import pytest

from tests.oom import programs

pytestmark = pytest.mark.torch
MIB, GIB = 1 << 20, 1 << 30
LOADING = """
import torch
from torch import nn
net = nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range({layers})))
{before}
{move}
"""


def run(code, *, fails):
    """Run a program on a new card; return its out-of-memory error and what is allocated."""
    import torch

    trace, allocated = programs.run(
        code, fails=fails, defer=True, look=lambda _names: torch.cuda.memory_allocated()
    )
    ooms = trace.report().ooms
    return ooms[0] if ooms else None, allocated


def test_half_as_many_bits_are_told_where_they_fit_and_run_where_pasted():
    oom, _ = run(LOADING.format(layers=64, before="", move="net.cuda()"), fails=True)
    first = oom.remedies[0]
    assert first.rule == "weights_dtype"
    assert first.title == "Load net in bfloat16: 8.00 GiB in place of 16.00 GiB"
    _, allocated = run(LOADING.format(layers=64, before="", move=first.code), fails=False)
    assert allocated == 16 * GIB - first.low == 8 * GIB


def test_a_model_that_does_not_fit_in_half_as_many_bits_is_too_large():
    oom, _ = run(LOADING.format(layers=130, before="", move="net.cuda()"), fails=True)
    assert oom.remedies == ()
    (note,) = oom.notes
    assert note == (
        "net is larger than the card: its float32 weights take 32.50 GiB (14.25 GiB of 32.50 GiB "
        "were there), in bfloat16 16.25 GiB, in 4 bits about 4.55 GiB, which it holds. "
        "Accelerate's device_map keeps a part of them on the host."
    )


def test_a_model_of_16_bits_is_told_what_it_takes_in_4():
    code = LOADING.format(layers=130, before="net.to(torch.bfloat16)", move="net.cuda()")
    (note,) = run(code, fails=True)[0].notes
    assert note.startswith("net is larger than the card: its 16-bit weights take 16.25 GiB")
    assert "were there), in 4 bits about 4.55 GiB, which it holds." in note


@pytest.mark.parametrize(
    ("before", "move"),
    [
        ("net.double()", "net.cuda()"),
        ("net[0].cuda()", "x = torch.empty(20 << 30, device='cuda')"),  # something else is large
    ],
    ids=["other numbers", "another tensor"],
)
def test_where_float32_weights_are_not_the_cause_nothing_is_said(before, move):
    oom, _ = run(LOADING.format(layers=130, before=before, move=move), fails=True)
    assert not any(remedy.rule == "weights_dtype" for remedy in oom.remedies)
    assert not any("is larger than the card" in note for note in oom.notes)
