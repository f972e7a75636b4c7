"""Tab after nbmem's magics, in a real shell."""

from __future__ import annotations

import pytest

import nbmem


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%nbmem hi", {"history"}),
        ("%nbmem o", {"open", "on", "off"}),
        ("%nbmem gpu a100", {"A100-80GB", "A100-40GB"}),
        ("%%memtrace --max", {"--max-peak"}),
        ("%memtrace --st", {"--stacks"}),
        ("%%memtrace run --gpu rtx-5", {"RTX-5080", "RTX-5090"}),
        ("%nbmem export p", {"perfetto"}),
    ],
)
def test_tab_offers_what_may_stand_there(shell, line, offered):
    nbmem.load_ipython_extension(shell)
    _, words = shell.complete(None, line, len(line))
    assert set(words) == offered


def test_unloading_takes_the_completions_away(shell):
    nbmem.load_ipython_extension(shell)
    nbmem.unload_ipython_extension(shell)
    assert "history" not in shell.complete(None, "%nbmem hi", 9)[1]
