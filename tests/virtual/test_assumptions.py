"""Conditions on unknown values are answered from one assumption."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbmem import virtual
from nbmem.virtual.tensors import values

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


def words():
    return torch.randn(2, 32_000, device="cuda").argmax(-1)


def test_a_text_goes_on_to_the_programs_own_limit(gpu, monkeypatch):
    """As `generate` asks after each token: have all texts ended?"""
    monkeypatch.setattr(values, "PATIENCE", 4)
    monkeypatch.setattr(values, "GOING_ON", 32)
    end = torch.tensor([2], device="cuda")
    for is_end in (lambda: words() == 2, lambda: torch.isin(words(), end)):
        for _ in range(4):  # texts at one line
            going = torch.ones(2, dtype=torch.long, device="cuda")
            for token in range(20):
                at_limit = torch.full((2,), token == 19, device="cuda")
                going = going & ~(is_end() | at_limit)
                if going.max() == 0:
                    break
            assert token == 19
    assert not any("a loop waits" in note for note in gpu.notes)


def test_what_waits_for_a_word_ends(gpu, monkeypatch):
    monkeypatch.setattr(values, "GOING_ON", 16)
    asked = 0
    for end in (2, 31_990):
        while words()[0].item() != end:
            asked += 1
            assert asked < 64
        assert asked > 16
    while not (words() == 2).all():
        asked += 1
        assert asked < 128


def test_a_mask_that_was_read_is_known(gpu):
    """As Whisper asks: does the text end with a timestamp, and where are its pairs?"""
    stamps = words() >= 503
    assert len(torch.where(words() >= 503)[0]) == 2  # not read: all, which is a bound
    assert stamps[-1:].tolist() == [False]
    assert len(torch.where(stamps[:-1] & stamps[1:])[0]) == 0
    assert len(stamps.nonzero()) == 0


def test_one_minus_a_mask_is_its_opposite(gpu):
    """As the scores of beams are counted."""
    beams = torch.randn(4, 10, device="cuda").topk(10)[1]
    assert (1 - (beams < 0).long()).sum(-1).max() == 10
    assert (1 - (beams >= 0).long()).sum() != 40
