"""A card's random generator: a seed and an offset, but no numbers.

It is what `torch.Generator("cuda")` makes. Only the seeds of stand-ins are drawn from it
(stand_ins/): to C++ it is a generator of the CPU.
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
    """A metaclass that counts torch's own generators as instances."""

    def __instancecheck__(cls, instance: object) -> bool:  # noqa: N805 - a metaclass
        return isinstance(instance, _Generator)


class _State:
    """A generator's state, which several generators may share.

    Attributes:
        seed: The seed.
        offset: How many numbers were drawn from it.
    """

    def __init__(self, seed: int = _FIRST_SEED, offset: int = 0) -> None:
        self.seed = seed
        self.offset = offset


class VirtualGenerator(_Generator, metaclass=_GeneratorKind):
    """The replacement of torch.Generator while a virtual card is active."""

    _card: torch.device
    _state: _State
    _begins_anew: bool

    def __new__(cls, device: Any = "cpu") -> Any:
        """Make a generator of the CPU, or a card's with seed and offset only."""
        device = card_device(device)
        return make_generator(device) if is_card(device) else _Generator(device)

    @property
    def device(self) -> torch.device:
        """The generator's card."""
        return self._card

    def get_state(self) -> torch.Tensor:
        """Return seed and offset in the 16 bytes of a card's generator."""
        with torch._C._DisableTorchDispatch():
            numbers = [_signed(self._state.seed), self._state.offset]
            return torch.tensor(numbers, dtype=torch.int64, device="cpu").view(torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> Any:
        """Set a state that get_state() returned, here or on a card.

        Raises:
            RuntimeError: The state has another size than a card's.
            TypeError: The state is no tensor of bytes on the CPU.
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
        """Set the seed and reset the offset."""
        self._state.seed, self._state.offset = int(seed) % (1 << 64), 0
        super().manual_seed(_signed(self._state.seed))
        self._begins_anew = True
        return self

    def takes_new_dropout(self) -> bool:
        """Return whether it was seeded since the last call of this method.

        Then the dropout of recurrent layers is seeded anew, too.

        aten/src/ATen/cuda/CUDAGeneratorImpl.cpp: reset_rnn_state
        """
        anew, self._begins_anew = self._begins_anew, False
        return anew

    def seed(self) -> int:
        """Set a random seed of the CPU's choice and return it."""
        self.manual_seed(_Generator("cpu").seed())
        return self._state.seed

    def initial_seed(self) -> int:
        """Return the seed."""
        return self._state.seed

    def get_offset(self) -> int:
        """Return how many numbers of the seed are used up.

        No operator here uses any.
        """
        return self._state.offset

    def set_offset(self, offset: int) -> None:
        """Set how many numbers of the seed are used up."""
        self._state.offset = int(offset)
        self._begins_anew = True

    def clone_state(self) -> Any:
        """Return a generator with a copy of the state."""
        return make_generator(self._card, _State(self._state.seed, self._state.offset))

    def graphsafe_get_state(self) -> Any:
        """Return a generator that shares this state.

        For one state it is always the same generator.
        """
        state: Any = self._state
        if getattr(state, "holder", None) is None:
            state.holder = make_generator(self._card, state)
        return state.holder

    def graphsafe_set_state(self, state: Any) -> Any:
        """Share another generator's state."""
        self._state = state._state
        self._begins_anew = True
        return self


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def make_generator(device: torch.device, state: _State | None = None) -> Any:
    """Make a generator of a card, with a new state if none is given."""
    made = _Generator.__new__(VirtualGenerator, "cpu")
    made._card = device
    made._begins_anew = True
    made._state = _State() if state is None else state
    return made


def card_generators(count: int) -> tuple[Any, ...]:
    """Return the default generators of `count` cards."""
    return tuple(make_generator(CUDA[index]) for index in range(count))


def generator_patches() -> list[Patch]:
    """Return the patch of torch.Generator."""
    return [Patch(torch, "Generator", VirtualGenerator)]
