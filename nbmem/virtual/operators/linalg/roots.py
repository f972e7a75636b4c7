"""The square root of a matrix and its polar form (torch 2.14).

To autograd each is one operator, and its parts are the card's.
"""

from __future__ import annotations

import torch


def square_root(tensor: torch.Tensor) -> torch.Tensor:
    """Compute `linalg_matrix_sqrth` by eigenvalues.

    The root is made symmetric at the end.
    """
    values, vectors = torch.linalg.eigh(tensor)
    positive = values.clamp_min(0)
    roots = positive.sqrt()
    del positive
    scaled = vectors * roots.unsqueeze(-2)
    root = scaled @ vectors.mH
    del scaled
    both = root + root.mH
    made = both * 0.5
    del both, root, roots, values, vectors
    return made


def polar(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `linalg_polar` by singular values.

    The factors are computed beside both results, and copied into them.
    """
    columns = tensor.size(-1)
    results = torch.empty_like(tensor), tensor.new_empty((*tensor.size()[:-2], columns, columns))
    left, values, right = torch.linalg.svd(tensor, full_matrices=False)
    scaled = values.unsqueeze(-1) * right
    product = right.mH @ scaled
    del scaled
    both = product + product.mH
    hermitian = both * 0.5
    del both, product
    unitary = left @ right
    del unitary, hermitian, left, values, right
    return results
