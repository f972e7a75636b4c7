"""Tips and actions for another framework's memory."""

import contextlib

import pytest
import torch

import nbmem
from nbmem import virtual
from tests.frameworks.conftest import hold
from tests.frameworks.test_readings import tensorflow
from tests.ipython_shell import shell_on_virtual_card

MIB, GIB = 1 << 20, 1 << 30


def allocate(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def findings_of(trace, rule):
    return [finding for finding in trace.report().findings if finding.rule == rule]


def test_an_unused_pool_is_given_back_to_the_byte(card, cupy, monkeypatch):
    hold(card, cupy, 6 * GIB, 400 * MIB)
    with nbmem.trace("cell", namespace={}) as t:
        kept = allocate(100 * MIB)
    (tip,) = findings_of(t, "framework_cache")
    assert tip.title == "CuPy's pool can give back 5.61 GiB that it does not use"
    assert tip.low == tip.high == 6 * GIB - 400 * MIB

    def free_all_blocks():
        hold(card, cupy, cupy.used, cupy.used)

    monkeypatch.setattr(cupy, "free_all_blocks", free_all_blocks)
    process = card.process_bytes
    assert tip.command is None, "outside of a notebook there are no magics"
    freed = nbmem.free("frameworks")
    assert freed.measured == freed.actions[0].predicted == tip.low
    assert process - card.process_bytes == tip.low
    assert "other frameworks' pools: 5.61 GiB freed." in str(freed)
    assert "frameworks" in str(freed)
    again = nbmem.free("frameworks")
    assert again.measured == 0
    assert "none of them holds memory that it does not use" in str(again)
    del kept


@pytest.mark.parametrize("unused", [0, MIB, GIB])
def test_a_pool_that_is_used_or_small_is_no_tip(card, cupy, unused):
    hold(card, cupy, 3 * GIB, 3 * GIB - unused)
    with nbmem.trace("cell", namespace={}) as t:
        allocate(100 * MIB)
    assert findings_of(t, "framework_cache") == []


@pytest.mark.parametrize(("used", "tips"), [(400 * MIB, 1), (8 * GIB, 0)])
def test_jax_that_took_the_card_and_does_not_use_it(card, jax, used, tips):
    card.library_bytes = 11 * GIB
    jax |= {"bytes_in_use": used, "pool_bytes": 11 * GIB}
    with nbmem.trace("cell", namespace={}) as t:
        kept = allocate(2 * GIB)
    findings = findings_of(t, "preallocated")
    assert len(findings) == tips
    if findings:
        assert findings[0].title == "JAX preallocated 11.00 GiB and uses 400.0 MiB"
        assert findings[0].low == findings[0].high == 11 * GIB - used
        assert "XLA_PYTHON_CLIENT_PREALLOCATE" in findings[0].code
    del kept


def test_jax_on_a_card_with_room_is_left_alone(card, jax):
    card.library_bytes = 8 * GIB
    jax |= {"bytes_in_use": MIB, "pool_bytes": 8 * GIB}
    with nbmem.trace("cell", namespace={}) as t:
        allocate(MIB)
    assert findings_of(t, "preallocated") == []


def test_tensorflows_arena_is_what_no_other_framework_holds(card, put_in):
    card.library_bytes = 12 * GIB
    tensorflow(put_in, {"current": 300 * MIB, "peak": 300 * MIB})
    with nbmem.trace("cell", namespace={}) as t:
        kept = allocate(2 * GIB)
    (tip,) = findings_of(t, "preallocated")
    assert tip.low == 12 * GIB - 300 * MIB + card.context_bytes - GIB
    assert "set_memory_growth" in tip.code
    assert "TensorFlow says that 300.0 MiB are in use" in tip.evidence
    del kept


def failing(size):
    with nbmem.trace("cell", namespace={}) as t, contextlib.suppress(torch.OutOfMemoryError):
        allocate(size)
    return t.report().ooms[0]


def test_a_request_that_fits_without_cupys_unused_blocks(card, cupy):
    hold(card, cupy, 6 * GIB, 400 * MIB)
    oom = failing(10 * GIB)
    assert "by CuPy 6.00 GiB (5.61 GiB of it unused)." in oom.reason
    (remedy,) = [one for one in oom.remedies if one.rule == "framework_cache"]
    assert remedy.low == 6 * GIB - 400 * MIB
    assert remedy.command.arguments == ("frameworks",)
    hold(card, cupy, cupy.used, cupy.used)
    allocate(10 * GIB)  # and so it is


def test_a_request_that_would_not_fit_then_either_has_no_such_remedy(card, cupy):
    hold(card, cupy, 6 * GIB, 400 * MIB)
    oom = failing(15 * GIB)
    assert "framework_cache" not in [one.rule for one in oom.remedies]


def test_a_request_that_fits_beside_a_jax_that_grows_by_need(card, jax):
    card.library_bytes = 11 * GIB
    jax |= {"bytes_in_use": MIB, "pool_bytes": 11 * GIB}
    (remedy,) = [one for one in failing(8 * GIB).remedies if one.rule == "preallocated"]
    assert remedy.low == 11 * GIB - MIB
    assert remedy.command is None


def test_a_cell_that_was_not_traced_hears_of_it_too(cupy, monkeypatch, capsys):
    with shell_on_virtual_card(monkeypatch) as shell:
        shell.run_cell("x = torch.empty(1, device='cuda')", store_history=True)
        card = virtual.active()
        hold(card, cupy, 6 * GIB, 400 * MIB)
        wanted = card.free_bytes + 2 * GIB
        shell.run_cell(f"torch.empty({wanted}, dtype=torch.uint8, device='cuda')")
        output = " ".join(capsys.readouterr().out.split())
    assert "by CuPy 6.00 GiB (5.61 GiB of it unused)." in output
    assert "Let CuPy's pool give back 5.61 GiB that it does not use" in output
    assert "%nbmem free frameworks" in output
