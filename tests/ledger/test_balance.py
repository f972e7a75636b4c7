"""A ledger that does not add up says so, in production."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbmem.core.categories import Category
from nbmem.core.errors import LedgerImbalanceError
from nbmem.ledger.balance import Ledger

held = st.lists(st.integers(0, 1 << 40), min_size=len(Category), max_size=len(Category))


@given(held)
def test_the_parts_make_the_wholes(parts):
    ledger = Ledger(total_bytes=sum(parts), held=tuple(parts))
    ledger.check(allocated=ledger.allocated, reserved=ledger.reserved)
    assert ledger.active == ledger.allocated + ledger[Category.PENDING]
    assert ledger.process == ledger.reserved + ledger[Category.CONTEXT]
    assert ledger.used + ledger[Category.FREE] == ledger.total_bytes
    assert ledger.reserved + ledger.outside == ledger.used
    assert sum(ledger.to_json().values()) == ledger.total_bytes


@given(held, st.integers(1, 1000))
def test_a_byte_too_many_is_noticed(parts, extra):
    ledger = Ledger(total_bytes=sum(parts) + extra, held=tuple(parts))
    with pytest.raises(LedgerImbalanceError, match=rf"of the card, .* \(-{extra} B\)"):
        ledger.check()


def test_a_counter_that_disagrees_is_noticed():
    ledger = Ledger(total_bytes=20, held=(1,) * 20)
    with pytest.raises(LedgerImbalanceError, match="of reserved, which has 17 B"):
        ledger.check(reserved=17)
    with pytest.raises(LedgerImbalanceError, match="of allocated, which has 3 B"):
        ledger.check(allocated=3)


def test_no_category_is_negative():
    ledger = Ledger(total_bytes=19, held=(-1, *(1,) * 18, 2))
    with pytest.raises(LedgerImbalanceError, match="weights holds -1 B"):
        ledger.check()


def test_an_unknown_process_is_none_not_zero():
    assert Ledger(total_bytes=20, held=(1,) * 20, process_known=False).process is None


def test_the_json_keys_are_the_stable_ones():
    keys = Ledger(total_bytes=0, held=(0,) * 20).to_json()
    assert " ".join(keys) == (
        "weights buffers gradients optimizer_state inputs activations output_gradients "
        "temporaries workspace communication user_tensors unknown rounding pending "
        "cached_releasable cached_stuck context other_processes driver free"
    )
