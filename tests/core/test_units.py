"""Bytes are written with their unit and read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbmem.core.errors import UsageError
from nbmem.core.units import GIB, MIB, format_bytes, format_ms, format_range, parse_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (20 * MIB, "20.0 MiB"),
        (1014 * MIB, "1,014.0 MiB"),
        (80 * GIB, "80.00 GiB"),
        (-3 * MIB, "-3.0 MiB"),
    ],
)
def test_written(count, text):
    assert format_bytes(count) == text


def test_a_change_has_a_sign():
    assert format_bytes(MIB, signed=True) == "+1.0 MiB"
    assert format_bytes(0, signed=True) == "0 B"


def test_a_range_is_one_figure_where_both_ends_are_written_alike():
    assert format_range(MIB, 2 * MIB) == "1.0 MiB to 2.0 MiB"
    assert format_range(MIB, MIB + 1) == "1.0 MiB"
    assert format_range(0, 2 * MIB) == "up to 2.0 MiB"
    assert format_range(0, 0) == "0 B"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("20GiB", 20 * GIB),
        (" 1.5 MiB ", 3 * MIB // 2),
        ("7", 7),
        ("2g", 2 * GIB),
        ("20GB", 20 * 10**9),
        ("1.5 tib", 1536 * GIB),
    ],
)
def test_read(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "20 bananas", "1e9"])
def test_nonsense_is_a_sentence(text):
    with pytest.raises(UsageError, match="for example 512MiB or 20GiB"):
        parse_bytes(text)


@given(st.integers(-(1 << 50), 1 << 50))
def test_every_figure_says_its_unit(count):
    assert format_bytes(count).rsplit(" ", 1)[1] in ("B", "KiB", "MiB", "GiB")


def test_durations():
    assert format_ms(1_500_000) == "1.5 ms"
    assert format_ms(2_500_000_000) == "2.50 s"
