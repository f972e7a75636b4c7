"""Allocator requests of a call and its backward, first and later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.oracle.record import AllocatorEvents


def requests_by_moment(
    make: Callable[[], Sequence[Any]], call: Callable[..., Any]
) -> dict[str, list[int]]:
    """Record sizes allocated and, negative, freed, in order, by moment.

    Args:
        make: Makes the arguments, unheard.
        call: What is heard; a result with a gradient goes backward from ones, too.
    """
    import torch

    found: dict[str, list[int]] = {}
    arguments = make()
    for time in ("first", "later"):
        heard = AllocatorEvents(torch)
        out = call(*arguments)
        found[time] = heard.sizes()
        if torch.is_tensor(out) and out.requires_grad:
            ones = torch.ones_like(out)
            heard = AllocatorEvents(torch)
            out.backward(ones)
            found[f"{time} backward"] = heard.sizes()
            del ones
            _forget(torch, arguments)
        del out
    return found


def _forget(torch: Any, arguments: Sequence[Any]) -> None:
    for one in arguments:
        if isinstance(one, torch.nn.Module):
            one.zero_grad()
        elif torch.is_tensor(one):
            one.grad = None


def warm_up_libraries() -> None:
    """Make the libraries' handles and workspaces before anything is recorded."""
    import torch

    x = torch.zeros(8, 8, device="cuda", requires_grad=True)
    torch.nn.functional.linear(x, x, x[0]).sum().backward()
