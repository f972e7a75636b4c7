"""The grammar of PYTORCH_CUDA_ALLOC_CONF: keys, and values of each kind."""

from __future__ import annotations

import re

from nbmem.allocator.rounding import NO_DIVISIONS
from nbmem.core.errors import UsageError
from nbmem.core.session.tensor_names import quoted


class MalformedSettings(UsageError):  # noqa: N818 - a UsageError of the settings
    """A text that does not have the form of allocator settings."""


Value = str | list[tuple[str, str]]

_MAX_PINNED_THREADS = 128
"""Threads that register pinned memory, as torch 2.13 limits them."""
_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]]+")


def tokens_of(conf: str) -> list[tuple[str, Value]]:
    """Split `key:value,key:[a:b,c:d]` into pairs of a key and a value.

    Spaces are ignored, as in torch.

    Raises:
        UsageError: The text does not have this form.
    """
    tokens = _TOKEN.findall("".join(conf.split()))
    pairs: list[tuple[str, Value]] = []
    at = 0
    while at < len(tokens):
        key = tokens[at]
        if len(tokens) < at + 3 or tokens[at + 1] != ":" or key in ",:[]":
            raise _malformed(conf)
        if tokens[at + 2] == "[":
            if "]" not in tokens[at:]:
                raise _malformed(conf)
            end = tokens.index("]", at)
            pairs.append((key, _listed(tokens[at + 3 : end], conf)))
            at = end + 1
        else:
            if tokens[at + 2] in ",:]":
                raise _malformed(conf)
            pairs.append((key, tokens[at + 2]))
            at += 3
        if at < len(tokens):
            if tokens[at] != ",":
                raise _malformed(conf)
            at += 1
    return pairs


def _listed(tokens: list[str], conf: str) -> list[tuple[str, str]]:
    found = []
    for at in range(0, len(tokens), 4):
        entry = tokens[at : at + 4]
        if len(entry) < 3 or entry[1] != ":" or (len(entry) == 4 and entry[3] != ","):
            raise _malformed(conf)
        found.append((entry[0], entry[2]))
    return found


def _malformed(conf: str) -> MalformedSettings:
    return MalformedSettings(
        f"{quoted(conf)} is not of the form key:value,key:value that PYTORCH_CUDA_ALLOC_CONF has, "
        "for example max_split_size_mb:128,expandable_segments:True."
    )


def mib_of(key: str, value: Value, *, least: int) -> int:
    """Parse a whole number of MiB that is at least `least`."""
    if not isinstance(value, str) or not value.isdecimal() or int(value) < least:
        raise UsageError(
            f"{key} must be a whole number of MiB, at least {least}; got {quoted(value)}."
        )
    return int(value)


def number_of(key: str, value: Value) -> int:
    """Parse a whole number."""
    if not isinstance(value, str) or not value.isdecimal():
        raise UsageError(f"{key} must be a whole number; got {quoted(value)}.")
    return int(value)


def power_of(key: str, value: Value) -> int:
    """Parse a power of two that is at most 128."""
    number = number_of(key, value)
    if number < 1 or number & (number - 1) or number > _MAX_PINNED_THREADS:
        raise UsageError(
            f"{key} must be a power of two, at most {_MAX_PINNED_THREADS}; got {quoted(value)}."
        )
    return number


def fraction_of(key: str, value: Value, *, ends_allowed: bool) -> float:
    """Parse a number between 0 and 1, inclusive on request."""
    try:
        fraction = float(value) if isinstance(value, str) else -1.0
    except ValueError:
        fraction = -1.0
    if not (0.0 < fraction < 1.0 or (ends_allowed and fraction in (0.0, 1.0))):
        raise UsageError(f"{key} is invalid: it must lie between 0 and 1; got {quoted(value)}.")
    return fraction


def flag_of(key: str, value: Value) -> bool:
    """Parse True or False in torch's spelling."""
    if value not in ("True", "False"):
        raise UsageError(f"{key} must be True or False; got {quoted(value)}.")
    return value == "True"


def divisions_of(key: str, value: Value, *, last_key_fills_itself: bool) -> tuple[int, ...]:
    """Parse the 16 entries of roundup_power2_divisions.

    The value is one number or a list.

    Args:
        key: The setting's name, for the message.
        value: A power of two, or pairs of a size in MiB (a power of two; the last may be
            `>`) and a power of two or 0.
        last_key_fills_itself: Whether `>` overwrites the last listed entry.
    """
    if isinstance(value, str):
        return (_power(key, value),) * len(NO_DIVISIONS)
    entries = list(NO_DIVISIONS)
    last: int | None = None
    for size, count in value:
        parts = 0 if count == "0" else _power(key, count)
        if size == ">":
            start = 0 if last is None else last + (not last_key_fills_itself)
            entries[start:] = [parts] * (len(entries) - start)
            continue
        at = min(_power(key, size).bit_length() - 1, len(entries) - 1)
        if last is None:
            entries[:at] = [parts] * at
        entries[at] = parts
        last = at
    return tuple(entries)


def _power(key: str, text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1 or number & (number - 1):
        raise UsageError(f"{key} takes powers of two; got {quoted(text)}.")
    return number
