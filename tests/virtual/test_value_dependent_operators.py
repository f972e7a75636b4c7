"""Operators that read values or write in place: sizes in order.

The figures are the oracle's (tests/oracle), of torch 2.13 on the H100.
"""

import pytest
import torch

from tests.virtual.allocation_history import own_allocations

pytestmark = [
    pytest.mark.skipif(torch.__version__ < (2, 13), reason="the figures are those of torch 2.13"),
    pytest.mark.usefixtures("card"),
]


def on_card(values, *, learned=False):
    return torch.tensor(values, device="cuda").requires_grad_(learned)


def backward(make, *learned):
    """Prepare a backward pass from ones, after an unrecorded forward."""

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
MASKED = MATRIX, [0, 0, 0], [5.0]
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
    "rows that differ": (
        forward(lambda x: torch.unique(x, dim=0, return_inverse=True), MATRIX),
        [24, 767, -767, 24, 24, 255, -255, 1279, -1279, -24, 1535, -1535, 24, -24],
    ),
    "columns that differ from the one before": (
        forward(lambda x: torch.unique_consecutive(x, dim=1, return_counts=True), MATRIX),
        [24, 16, 24, 1535, -1535, 16, 255, -255, -24, 24, -16, -24],
    ),
    "rows that are not empty": (
        forward(lambda x: x.to_sparse(1), MATRIX),
        [
            *(4, 1, -1, 96, 1023, -1023, -4, 48, 767, -767, 1535, -1535, 24, -48, 24, 24),
            *(-24, -96),
        ],
    ),
    "an addition by a mask of nothing": (
        forward(lambda x, at, y: x.index_put((at > 0,), y, accumulate=True), *MASKED),
        [3, 24, 4, 1, -1, 1023, -1023, -4, -3],
    ),
    "eigenvalues of no matrices": (
        forward(lambda x: torch.linalg.eigvals(x.expand(0, 2, 2)), [[1.0, 2.0], [3.0, 4.0]]),
        [4, 1, -1, 1, 1, -1, -1, -4],
    ),
    "a compressed matrix at its places": (
        forward(lambda x: x.to_sparse_csr().sparse_mask(x.to_sparse_csr()), MATRIX),
        [
            *(6, 4, 1, -1, 96, 1023, -1023, -4, 32, 4, 1, -1, 48, 1023, -1023, -4, 24, -48),
            *(-6, 6, 4, 1, -1, 96, 1023, -1023, -4, 32, 4, 1, -1, 48, 1023, -1023, -4, 24),
            *(-48, -6, 24, 48, 32, 8, 96, 96, 48, 48, 96, 8, -8, 96, 24, -96, -48, -48, 32),
            *(32, -8, 48, 24, -32, -24, -96, -96, -96, -24, -48, -32, -24, -96, -32, -24),
            *(-96, -32),
        ],
    ),
    "a dense matrix at the places of a compressed one": (
        forward(lambda x: x.sparse_mask(x.to_sparse_csr()), MATRIX),
        [
            *(6, 4, 1, -1, 96, 1023, -1023, -4, 32, 4, 1, -1, 48, 1023, -1023, -4, 24, -48),
            *(-6, 1, 6, 8, 48, -8, 8, 24, 24, 24, 8, 8, 32, -8, -24, -8, -24, -24, -8, 96),
            *(48, -48, 48, 48, 48, 48, 48, -48, -48, -48, -48, -48, -96, -32, -48, -1, 4),
            *(1, -1, 96, 1023, -1023, -4, 32, 4, 1, -1, 48, 1023, -1023, -4, 24, -48, -6),
            *(-24, -96, -32),
        ],
    ),
}
"""By what is done: what prepares it, and the sizes that it allocates and frees."""


@pytest.mark.parametrize("name", CASES)
def test_a_call_takes_what_it_takes_on_a_card(name):
    prepare, expected = CASES[name]
    assert own_allocations(prepare()) == expected


def test_eigenvectors_refuse_a_loss_that_depends_on_their_phase():
    vectors = torch.linalg.eig(on_card([[1.0, 2.0], [-3.0, 4.0]], learned=True)).eigenvectors
    with pytest.raises(RuntimeError, match="linalg_eig_backward: The eigenvectors in the complex"):
        vectors.backward(torch.ones_like(vectors) * (1 + 2j))
