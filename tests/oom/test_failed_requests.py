"""Failed requests after which torch continues are no OOM."""

import pytest

import nbmem

pytestmark = pytest.mark.torch
MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def listed(card):
    """Let the card's cuDNN list kernels with these workspaces."""
    from tests.fake_cudnn import FakeCudnn

    def lists(*sizes):
        card.dnn = FakeCudnn(*sizes)

    return lists


def trace_report(run, *, stacks):
    with (trace := nbmem.trace("run", stacks=stacks)):
        run()
    return trace.report()


@pytest.mark.parametrize("stacks", [True, False])
@pytest.mark.parametrize("smaller", [2 * MIB, 0])
def test_a_convolution_that_takes_a_smaller_kernel_did_not_run_out(listed, smaller, stacks):
    import torch

    listed(90 * GIB, 80 * GIB, smaller)

    def train():
        model = torch.nn.Conv2d(16, 16, 3, device="cuda")
        model(torch.randn(4, 16, 64, 64, device="cuda")).sum().backward()

    report = trace_report(train, stacks=stacks)
    assert torch.cuda.memory_stats()["num_ooms"] == 4
    assert not report.ooms
    assert not [finding for finding in report.findings if finding.rule == "batch_size"]
    assert [
        note for note in report.notes if note.startswith("4 requests found no room (up to 90.0")
    ]


@pytest.mark.parametrize("stacks", [True, False])
@pytest.mark.usefixtures("card")
def test_an_error_that_the_program_caught_is_told(stacks):
    import torch

    def train():
        try:
            torch.empty(90 * GIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            torch.empty(MIB, dtype=torch.uint8, device="cuda")

    report = trace_report(train, stacks=stacks)
    assert [oom.asked for oom in report.ooms] == [90 * GIB]
    assert not [note for note in report.notes if "found no room" in note]


def test_the_error_that_ended_the_cell_is_told_beside_those_passed_over(listed):
    import torch

    listed(90 * GIB, 80 * GIB, 0)

    def train():
        model = torch.nn.Conv2d(16, 16, 3, device="cuda")
        model(torch.randn(4, 16, 64, 64, device="cuda"))
        torch.empty(70 * GIB, dtype=torch.uint8, device="cuda")

    with pytest.raises(torch.OutOfMemoryError), (trace := nbmem.trace("run")):
        train()
    assert [oom.asked for oom in trace.report().ooms] == [70 * GIB]


@pytest.mark.parametrize("stacks", [True, False])
@pytest.mark.usefixtures("card")
def test_a_program_that_halves_what_it_asks_for_is_told(stacks):
    """The same line asks again at once, as torch does, but keeps what it gets."""
    import torch

    kept = []

    def fill():
        size = 160 * GIB
        while size >= 20 * GIB:
            try:
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                size //= 2

    report = trace_report(fill, stacks=stacks)
    assert sorted(oom.asked for oom in report.ooms) == [
        20 * GIB,
        40 * GIB,
        80 * GIB,
        160 * GIB,
    ]
