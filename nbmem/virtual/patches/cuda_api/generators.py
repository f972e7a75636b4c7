"""`torch.Generator("cuda")`: it has a seed and an offset, and makes no numbers.

Only the seeds of stand-ins are drawn from it (stand_ins/): C++ has it for a generator of the CPU.
"""

from __future__ import annotations

from typing import Any

import torch

from nbmem.virtual.devices import CUDA
from nbmem.virtual.patches.patcher import Patch
from nbmem.virtual.patches.tensor_api.transfers import card_device, is_card

_Generator: Any = torch.Generator
_Meta: Any = type(_Generator)
_FIRST_SEED = 67280421310721
"""default_rng_seed_val, c10/core/GeneratorImpl.h"""


class _GeneratorKind(_Meta):
    """Torch's own generators are instances, too."""

    def __instancecheck__(cls, instance: object) -> bool:  # noqa: N805 - a metaclass
        return isinstance(instance, _Generator)


class _State:
    """What several generators may share.

    Attributes:
        seed: The seed.
        offset: How many numbers were drawn from it.
    """

    def __init__(self, seed: int = _FIRST_SEED, offset: int = 0) -> None:
        self.seed = seed
        self.offset = offset


class VirtualGenerator(_Generator, metaclass=_GeneratorKind):
    """What torch.Generator is while a virtual card is active."""

    _card: torch.device
    _state: _State
    _begins_anew: bool

    def __new__(cls, device: Any = "cpu") -> Any:
        """A generator of the CPU, or one that only has a state and a seed."""
        device = card_device(device)
        return of_card(device) if is_card(device) else _Generator(device)

    @property
    def device(self) -> torch.device:
        """The card."""
        return self._card

    def get_state(self) -> torch.Tensor:
        """Seed and offset, in the 16 bytes of a card's generator."""
        with torch._C._DisableTorchDispatch():
            numbers = [_signed(self._state.seed), self._state.offset]
            return torch.tensor(numbers, dtype=torch.int64, device="cpu").view(torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> Any:
        """Take over a state that get_state() gave, here or on a card.

        Raises:
            RuntimeError: It is none of a card's.
        """
        if new_state.device.type != "cpu" or new_state.dtype is not torch.uint8:
            raise TypeError("expected a torch.ByteTensor, but got " + new_state.type())
        if new_state.numel() not in (8, 16):
            raise RuntimeError("RNG state is wrong size")
        with torch._C._DisableTorchDispatch():
            seed, *offset = new_state.clone().view(torch.int64).tolist()
        self._state.seed, self._state.offset = seed % (1 << 64), offset[0] if offset else 0
        super().manual_seed(_signed((seed + sum(offset)) % (1 << 64)))
        self._begins_anew = True
        return self

    def manual_seed(self, seed: int) -> Any:
        """Begin anew."""
        self._state.seed, self._state.offset = int(seed) % (1 << 64), 0
        super().manual_seed(_signed(self._state.seed))
        self._begins_anew = True
        return self

    def takes_new_dropout(self) -> bool:
        """Whether it was seeded since it was last asked: recurrent layers' dropout is, too.

        aten/src/ATen/cuda/CUDAGeneratorImpl.cpp: reset_rnn_state
        """
        anew, self._begins_anew = self._begins_anew, False
        return anew

    def seed(self) -> int:
        """Begin anew with a seed of the CPU's choice."""
        self.manual_seed(_Generator("cpu").seed())
        return self._state.seed

    def initial_seed(self) -> int:
        """The seed."""
        return self._state.seed

    def get_offset(self) -> int:
        """How far the numbers of the seed are used up; nothing uses them here."""
        return self._state.offset

    def set_offset(self, offset: int) -> None:
        """Go on elsewhere."""
        self._state.offset = int(offset)
        self._begins_anew = True

    def clone_state(self) -> Any:
        """A generator with a state of its own."""
        return of_card(self._card, _State(self._state.seed, self._state.offset))

    def graphsafe_get_state(self) -> Any:
        """A generator with the same state; of one state it is always the same."""
        state: Any = self._state
        if getattr(state, "holder", None) is None:
            state.holder = of_card(self._card, state)
        return state.holder

    def graphsafe_set_state(self, state: Any) -> Any:
        """Share another generator's state."""
        self._state = state._state
        self._begins_anew = True
        return self


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def of_card(device: torch.device, state: _State | None = None) -> Any:
    """A generator of a card, with its own state if none is given."""
    made = _Generator.__new__(VirtualGenerator, "cpu")
    made._card = device
    made._begins_anew = True
    made._state = _State() if state is None else state
    return made


def card_generators(count: int) -> tuple[Any, ...]:
    """The default generators of so many cards."""
    return tuple(of_card(CUDA[index]) for index in range(count))


def generator_patches() -> list[Patch]:
    """The class, by its public name."""
    return [Patch(torch, "Generator", VirtualGenerator)]
