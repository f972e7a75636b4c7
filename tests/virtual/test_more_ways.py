"""Formulas and operators that ask the card's values or write in place: as torch's CUDA code asks.

The figures are the oracle's (tests/oracle), of torch 2.13 on the H100.
"""

import pytest

torch = pytest.importorskip("torch", reason="the virtual card answers torch")

from tests.virtual.test_scratch import taken

pytestmark = [
    pytest.mark.skipif(torch.__version__ < (2, 13), reason="the figures are those of torch 2.13"),
    pytest.mark.usefixtures("card"),
]


def on_card(values, *, learned=False):
    return torch.tensor(values, device="cuda").requires_grad_(learned)


def backward(make, *learned):
    """What does the backward pass of `make` from ones, behind a forward that is not heard."""

    def prepared():
        inputs = [on_card(values, learned=True) for values in learned]
        results = make(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        ones = [torch.ones_like(result) for result in results]
        return lambda: torch.autograd.backward(results, ones)

    return prepared


def forward(make, *values):
    def prepared():
        inputs = [on_card(value) for value in values]
        return lambda: make(*inputs)

    return prepared


MATRIX = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
CASES = {
    "reflections": (
        backward(torch.linalg.householder_product, MATRIX, [0.5]),
        [
            *(24, 12, 4, -12, 4, 4, 4, -4, -4, 36, 12, 12, 36, -36, -12, -12, 24, 4, 12),
            *(12, 12, 4, 12, 12, -12, -4, -12, 4, 4, -4, -12, -12, -12, -4, -36, -4, -4),
            -24,
        ],
    ),
    "reflections that are multiplied": (
        backward(torch.ormqr, [[1.0, 2.0], [3.0, 4.0]], [0.5, 0.25], [[1.0], [2.0]]),
        [
            *(8, 16, 4, -4, -16, 16, 16, 8, -16, 8, 8, 8, -8, -8, 16, 8, 8, 16, -16, -8),
            *(-8, 16, 8, 8, 8, 8, 4, 8, 8, -8, -4, -8, 4, 4, -4, -8, -8, 8, 4, 8, -8, -4),
            *(-8, 8, 8, -8, 16, -16, -8, -8, -4, 8, 8, 8, 4, 8, 8, -8, -4, -8, 4, 4, -4),
            *(-8, -8, -8, -4, -16, -8, -8, -16),
        ],
    ),
    "a product with rows that cuBLAS cannot step through": (
        forward(lambda x: torch.bmm(x[:, :1, ::2], x[:, :2]), [[[1.0] * 4] * 3] * 2),
        [32, 16, -16],
    ),
}
"""By what is done: what prepares it, and the sizes that it allocates and frees."""


@pytest.mark.parametrize("name", CASES)
def test_a_call_takes_what_it_takes_on_a_card(name):
    prepare, expected = CASES[name]
    assert taken(prepare()) == expected
