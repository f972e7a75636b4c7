"""Conditions on unknown values are answered from one assumption."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the virtual card answers torch")

from nbmem import virtual

PAIRS = [("eq", "ne"), ("gt", "le"), ("lt", "ge")]
SHAPE = (64, 1 << 14)


def unknown(dtype):
    if dtype.is_floating_point:
        return torch.rand(SHAPE, device="cuda", dtype=dtype)
    return torch.randint(0, 32_000, SHAPE, device="cuda", dtype=dtype)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(PAIRS),
    st.sampled_from([torch.int64, torch.int32, torch.float32, torch.bfloat16]),
    st.one_of(st.integers(-3, 3), st.sampled_from([0.5, "tensor"])),
    st.sampled_from(["plain", "clone", "view", "not not", "and itself", "counted"]),
)
def test_a_comparison_and_its_complement_agree(pair, dtype, right, form):
    with virtual.activated("T4"):
        left = unknown(dtype)
        right = unknown(dtype) if right == "tensor" else right
        one, other = (getattr(torch, name)(left, right) for name in pair)
        one = {
            "plain": lambda: one,
            "clone": one.clone,
            "view": one.flatten,
            "not not": lambda: ~~one,
            "and itself": lambda: one & one,
            "counted": lambda: one.long().to(torch.int32).bool(),
        }[form]()
        assert bool(one.any()) is not bool(other.all())
        assert bool(one.all()) is not bool(other.any())
        assert bool((~one).all()) is bool(other.all())
        assert bool(one.cpu().any()) is bool(one.any())


def test_a_mask_is_not_needed_where_no_token_is_padding(gpu):
    tokens = unknown(torch.int64)
    assert not (tokens == 0).any()
    assert (tokens != 0).all()
    assert (tokens != 0).sum() == tokens.numel()
    ones = torch.ones_like(tokens)
    padded = (tokens == 0).any()
    assert ((tokens != 0).long() * padded + ones * ~padded).bool().sum() == tokens.numel()
    assert (tokens >= 0).all()
    assert not (tokens < 0).any()


def test_what_has_not_converged_goes_on(gpu):
    """As LBFGS asks: is the largest gradient within the tolerance?"""
    largest = torch.randn(64, device="cuda").abs().max()
    assert not largest <= 1e-7
    assert largest > 1e-7
    assert not largest > 1e3


def test_what_may_still_improve_goes_on(gpu):
    """As beam search asks: the best running score against the worst finished one."""
    running, finished = (torch.randn(4, 3, device="cuda").log_softmax(-1) for _ in range(2))
    improves = torch.ones(4, 1, dtype=torch.bool, device="cuda")
    improves &= torch.any(running[:, :1] > finished.amin(1, keepdim=True), dim=-1, keepdim=True)
    done = torch.zeros(4, 3, dtype=torch.bool, device="cuda") | (running == -1)
    assert torch.any(improves) & ~(torch.all(done) & False) & ~torch.all(done)


def test_positions_below_an_unknown_length_are_all_of_them(gpu):
    """As GRPO masks what stands behind the first end of an answer."""
    words = torch.randint(0, 32_000, (2, 6), device="cuda") + torch.rand(2, 6, device="cuda").long()
    ended = words == 3
    length = torch.full((2,), 6, device="cuda")
    length[ended.any(dim=1)] = ended.int().argmax(dim=1)[ended.any(dim=1)]
    places = torch.arange(6, device="cuda").expand(2, -1)
    assert (places <= length[:, None]).int().bool().cpu().all()
    assert not (places >= length[:, None]).any()
    assert not (length[:, None] < places).any()
