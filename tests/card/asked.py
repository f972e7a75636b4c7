"""What a call and its backward ask of the allocator, the first time and later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.oracle.record import Heard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def asked(make: Callable[[], Sequence[Any]], call: Callable[..., Any]) -> dict[str, list[int]]:
    """Sizes allocated and, negative, freed, in order, by moment.

    Args:
        make: Makes the arguments, unheard.
        call: What is heard; a result with a gradient goes backward from ones, too.
    """
    import torch

    found: dict[str, list[int]] = {}
    arguments = make()
    for time in ("first", "later"):
        heard = Heard(torch)
        out = call(*arguments)
        found[time] = heard.sizes()
        if torch.is_tensor(out) and out.requires_grad:
            ones = torch.ones_like(out)
            heard = Heard(torch)
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


def warm() -> None:
    """The libraries' handles and workspaces, which the first call of a process would ask for."""
    import torch

    x = torch.zeros(8, 8, device="cuda", requires_grad=True)
    torch.nn.functional.linear(x, x, x[0]).sum().backward()
