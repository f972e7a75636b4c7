"""Programs pass their own checks of unknown values.

PYTEST_DONT_REWRITE: what pytest makes of an assert is no program of a user's.
"""

import pytest
import torch


@pytest.fixture
def unknown(gpu):
    return torch.randn(100, 100, device="cuda") > 0


def test_a_program_passes_its_own_checks(unknown):
    assert unknown.all()
    assert not unknown.all(), f"none of {unknown.numel()}"
    assert unknown.all() and unknown.any(), "several"  # noqa: PT018 - as programs write them
    assert unknown.all().item()
    assert unknown.float().mean() < 3
    if not unknown.all():
        raise ValueError("not {}".format("all"))
    if unknown.any():
        raise ValueError("any")
    if unknown.any() or unknown.all():
        raise KeyError(1)


def test_what_raises_nothing_is_answered_as_before(unknown):
    answers = [bool(unknown.all())]
    answers.append(True if unknown.any() else False)  # noqa: SIM210 - a condition, not a value
    assert answers == [False, False]


def test_a_loop_still_ends(unknown):
    turns = 0
    while not unknown.all():
        turns += 1
        assert turns < 1000
    assert turns > 1


def test_torch_testing_passes_unknown_values(gpu):
    x = torch.randn(4, device="cuda")
    torch.testing.assert_close(x, torch.ones(4, device="cuda"))
    with pytest.raises(AssertionError, match="Mismatched elements: 4 / 4"):
        torch.testing.assert_close(torch.zeros(4, device="cuda"), torch.ones(4, device="cuda"))
    with pytest.raises(AssertionError, match="'shape' do not match"):
        torch.testing.assert_close(x, x[:2])


def test_weights_are_not_all_zero(gpu):
    weights = torch.nn.Linear(64, 64, device="cuda").weight
    assert weights.any()
    assert not torch.zeros(8, device="cuda").any()
    assert not weights.isnan().any()
