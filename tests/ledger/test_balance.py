"""A ledger that does not add up raises, in production, too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbmem.core.errors import LedgerImbalanceError
from nbmem.core.session.categories import BESIDE, Category
from nbmem.core.session.frameworks import Share
from nbmem.report.ledger.balance import Ledger


def ledger_of(parts, total=None):
    used, cached = parts[Category.FRAMEWORKS], parts[Category.FRAMEWORKS_CACHED]
    owners = (Share(name="cupy", held=used + cached, used=used),)
    total = sum(parts) if total is None else total
    return Ledger(total_bytes=total, held=tuple(parts), owners=owners)


held = st.lists(st.integers(0, 1 << 40), min_size=len(Category), max_size=len(Category))


@given(held)
def test_the_parts_make_the_wholes(parts):
    ledger = ledger_of(parts)
    ledger.check(allocated=ledger.allocated, reserved=ledger.reserved)
    assert ledger.active == ledger.allocated + ledger[Category.PENDING]
    assert ledger.process == ledger.reserved + sum(ledger[c] for c in (*BESIDE, Category.CONTEXT))
    assert ledger.used + ledger[Category.FREE] == ledger.total_bytes
    assert ledger.reserved + ledger.outside == ledger.used
    assert sum(ledger.to_json().values()) == ledger.total_bytes


@given(held, st.integers(1, 1000))
def test_a_byte_too_many_is_noticed(parts, extra):
    ledger = ledger_of(parts, sum(parts) + extra)
    with pytest.raises(LedgerImbalanceError, match=rf"of the card, .* \(-{extra} B\)"):
        ledger.check()


def test_a_counter_that_disagrees_is_noticed():
    ledger = ledger_of((1,) * 22)
    with pytest.raises(LedgerImbalanceError, match="of reserved, which has 17 B"):
        ledger.check(reserved=17)
    with pytest.raises(LedgerImbalanceError, match="of allocated, which has 3 B"):
        ledger.check(allocated=3)


def test_no_category_is_negative():
    ledger = ledger_of((-1, *(1,) * 20, 2))
    with pytest.raises(LedgerImbalanceError, match="weights holds -1 B"):
        ledger.check()


def test_an_unknown_process_is_none_not_zero():
    assert Ledger(total_bytes=22, held=(1,) * 22, process_known=False).process is None


def test_the_json_keys_are_the_stable_ones():
    keys = Ledger(total_bytes=0, held=(0,) * 22).to_json()
    assert " ".join(keys) == (
        "weights buffers gradients optimizer_state inputs activations output_gradients "
        "temporaries workspace communication user_tensors unknown rounding pending "
        "cached_releasable cached_stuck frameworks frameworks_cached context other_processes "
        "driver free"
    )


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(1, 1000))
def test_the_other_frameworks_make_their_categories(used, cached, extra):
    parts = [0] * len(Category)
    parts[Category.FRAMEWORKS], parts[Category.FRAMEWORKS_CACHED] = used, cached
    silent = Share(name="rmm", held=used, used=None)
    pool = Share(name="jax", held=cached, used=0)
    total = used + cached
    Ledger(total_bytes=total, held=tuple(parts), owners=(silent, pool)).check()
    parts[Category.FRAMEWORKS] += extra
    wrong = Ledger(total_bytes=total + extra, held=tuple(parts), owners=(silent, pool))
    with pytest.raises(LedgerImbalanceError, match="of other frameworks, which has"):
        wrong.check()
