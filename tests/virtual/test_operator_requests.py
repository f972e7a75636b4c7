"""Allocator requests of linear algebra, transforms, cells and losses.

The sizes are those of the oracle (tests/oracle) with torch 2.13 on an H100 80GB.
"""

import pytest
import torch
from torch.nn import functional

from tests.virtual.allocation_history import own_allocations


def ones(*sizes, **options):
    return torch.ones(sizes, device="cuda", **options)


def forward(call, *sizes, **options):
    given = [ones(*size, **options) for size in sizes]
    return lambda: call(*given)


def backward(call, *sizes):
    """Run backward from a dense gradient of each result."""
    given = [ones(*size, requires_grad=True) for size in sizes]
    results = call(*given)
    results = results if isinstance(results, tuple) else (results,)
    return lambda: torch.autograd.backward(results, [torch.ones_like(y) for y in results])


def summed(call, size):
    """Run backward from an expanded gradient."""
    total = call(ones(*size, requires_grad=True)).sum()
    return total.backward


def grouped(x):
    parameter = ones(6, dtype=x.dtype)
    return functional.group_norm(x, 3, parameter, parameter)


def unpooled(x):
    places = torch.zeros(1, 2, 3, 1, dtype=torch.int64, device="cuda").transpose(2, 3)
    return functional.max_unpool2d(x.transpose(2, 3), places, 3, 2, 0, (1, 2, 3, 6))


def cell(kind, rows, *, bias=True):
    made = kind(6, 10, bias=bias, device="cuda")
    return made, (rows, 6)


def scattered(reduce):
    places = torch.zeros(2, 4, dtype=torch.int64, device="cuda")
    return lambda x, y: x.scatter_reduce(0, places, y, reduce)


def connectionist(x):
    targets = torch.ones(2, 3, dtype=torch.int64, device="cuda")
    return functional.ctc_loss(x, targets, (5, 5), (3, 3))


lstm, gru = torch.nn.LSTMCell, torch.nn.GRUCell
margins = functional.multi_margin_loss
CASES = {
    "LSTMCell": lambda: forward(*cell(lstm, 4)),
    "LSTMCell, backward": lambda: backward(*cell(lstm, 4)),
    "LSTMCell without a bias, backward": lambda: backward(*cell(lstm, 4, bias=False)),
    "GRUCell": lambda: forward(*cell(gru, 4)),
    "GRUCell, backward": lambda: backward(*cell(gru, 4)),
    "solve a vector": lambda: forward(torch.linalg.solve, (5, 5), (5,)),
    "solve 20 rows for 20": lambda: forward(torch.linalg.solve, (2, 20, 20), (2, 20, 20)),
    "solve 20 rows for 3": lambda: forward(torch.linalg.solve, (20, 20), (20, 3)),
    "solve, backward": lambda: backward(torch.linalg.solve, (2, 5, 5), (2, 5)),
    "inverse": lambda: forward(torch.linalg.inv, (5, 5)),
    "inverse of 4 of 129 rows": lambda: forward(torch.linalg.inv, (4, 129, 129)),
    "determinant": lambda: forward(torch.linalg.det, (2, 5, 5)),
    "log determinant": lambda: forward(torch.linalg.slogdet, (5, 5)),
    "Cholesky": lambda: forward(torch.linalg.cholesky, (2, 5, 5)),
    "Cholesky, backward": lambda: backward(torch.linalg.cholesky, (5, 5)),
    "solve by Cholesky": lambda: forward(torch.cholesky_solve, (5, 3), (5, 5)),
    "eigenvalues": lambda: forward(torch.linalg.eigh, (5, 5)),
    "singular values": lambda: forward(torch.linalg.svd, (5, 3)),
    "QR": lambda: forward(torch.linalg.qr, (5, 3)),
    "LU": lambda: forward(torch.linalg.lu, (2, 3, 5)),
    "FFT along the first": lambda: forward(lambda x: torch.fft.rfft(x, dim=1), (5, 6, 7)),
    "inverse FFT": lambda: forward(torch.fft.irfft2, (5, 6, 7), dtype=torch.complex64),
    "FFT of frames": lambda: forward(lambda x: torch.stft(x, 16, 4, center=False,
                                     return_complex=True, window=ones(16)), (10, 100)),
    "cdist, backward": lambda: backward(lambda x, y: torch.cdist(x, y, p=3.0), (5, 2), (6, 2)),
    "pdist, backward": lambda: backward(functional.pdist, (5, 3)),
    "CTC": lambda: forward(connectionist, (5, 2, 4)),
    "CTC, backward": lambda: backward(connectionist, (5, 2, 4)),
    "margins": lambda: forward(lambda x: margins(x, ones(5, dtype=torch.int64)), (5, 10)),
    "mean by scatter": lambda: forward(scattered("mean"), (5, 4), (2, 4)),
    "least by scatter, backward": lambda: backward(scattered("amin"), (5, 4), (2, 4)),
    "variance and mean, backward": lambda: backward(torch.var_mean, (5, 4)),
    "a number to a power": lambda: forward(lambda x: 10_000.0**x, (5,)),
    "times powers of two": lambda: forward(torch.ldexp, (5, 1), (4,)),
    "gamma of many": lambda: forward(lambda x: torch.mvlgamma(x, 3), (5,)),
    "group norm of halves": lambda: forward(grouped, (4, 6, 5, 5), dtype=torch.half),
    "group norm of rows, backward": lambda: backward(grouped, (2, 6)),
    "layer norm, from a sum": lambda: summed(torch.nn.LayerNorm(10, device="cuda"), (4, 10)),
    "RMS norm, of many rows": lambda: summed(torch.nn.RMSNorm(10, device="cuda"), (70_000, 10)),
    "linear of a vector": lambda: summed(torch.nn.Linear(5, 4, device="cuda"), (5,)),
    "coins of halves": lambda: forward(torch.bernoulli, (7,), dtype=torch.half),
    "renorm of halves": lambda: forward(lambda x: x.renorm(2, 1, 0.5), (5, 3), dtype=torch.half),
    "largest of lists": lambda: forward(lambda *x: torch._foreach_max(x), (5,), (70_000,)),
    "distance from a number": lambda: forward(torch.dist, (), (5, 5)),
    "QR of several": lambda: forward(torch.linalg.qr, (2, 5, 3)),
    "unpooling a transposed": lambda: forward(unpooled, (1, 2, 3, 1)),
}  # fmt: skip
TAKEN = {
    "LSTMCell": [160, 640, 640, 640, 160, 160],
    "LSTMCell, backward": [160, 160, 640, 160, 160, -160, 160, 1600, 960, 96, -640, -160, -160],
    "LSTMCell without a bias, backward": [
        160, 160, 640, 160, -160, 1600, 960, 96, -640, -160, -160,
    ],
    "GRUCell": [160, 480, 480, 800, 160],
    "GRUCell, backward": [160, 480, 480, 160, 120, 120, -160, 1200, -480, 720, 96, -480, -160],
    "solve a vector": [20, 100, 20, 4, 20, 8, 8, -8, -8, -20, -100, -20, 1, 1, -1, -1, -4],
    "solve 20 rows for 20": [
        3200, 3200, 160, 8, 16, -16, 160, 320, -160, 160, 320, 3200, 16, 16, -16, -16, 16,
        16, -16, -16, -3200, -320, -160, -320, -3200, -160, 1, -1, -8,
    ],
    "solve 20 rows for 3": [240, 1600, 80, 4, 4, -4, -1600, -80, 1, 1, -1, -1, -4],
    "solve, backward": [40, 40, 16, 16, -16, -16, 200, 200, -200, -40],
    "inverse": [100, 4, 100, 20, 8, 8, -8, -8, -20, -100, 1, 1, -1, -1, -4],
    "inverse of 4 of 129 rows": [
        266256, 16, 266256, 2064, 1032, 4128, -1032, 1032, 4128, 266256, -266256, -4128,
        -1032, -4128, -2064, -266256, 1, -1, -16,
    ],
    "determinant": [
        8, 200, 40, 8, 16, -16, 8, 20, 10, 16, 80, -80, -10, -20, -16, -8, -8, -200, -40,
    ],
    "log determinant": [
        4, 4, 100, 20, 4, 20, 5, 8, 40, -40, -5, -20, 20, 4, -4, -20, -8, 20, -20, -4, -100,
        -20,
    ],
    "Cholesky": [200, 8, 16, -16, 1, -1, -8],
    "Cholesky, backward": [
        100, 100, 100, -100, 100, 100, 100, -100, -100, -100, 100, 8, 8, -8, -8, -100, 100,
        8, 8, -8, -8, -100, 100, -100, -100,
    ],
    "solve by Cholesky": [60, 4, 100, -100, -4],
    "eigenvalues": [100, 20, 4, 1, 1, -1, -1, -4],
    "singular values": [100, 36, 12, 4, 60, -60, 1, 1, -1, -1, -4],
    "QR": [60, 36, 12, 4, -4, 4, -4, -12],
    "LU": [72, 72, 120, 120, 24, 8, -120, 24, 48, -24, -48, -8, -24],
    "FFT along the first": [1120, 840, -840],
    "inverse FFT": [1440, 1680, -1680],
    "FFT of frames": [64, 14080, 15840, -14080, -64],
    "cdist, backward": [120, 40, 240, -240, 120, 120, 48, 240, -240, -120, -120, -120],
    "pdist, backward": [40, 60, 240, -240, -40],
    "CTC": [48, 16, 16, 16, 280, 8, -16, -16, -16, -280, 8, 8, -8, 8, 4, -8, -8, -8, -48],
    "CTC, backward": [4, 8, 8, -8, 16, 16, 16, 280, 160, -280, -16, -16, -16, -8, -4],
    "margins": [40, 4, 20, -20, -40],
    "mean by scatter": [80, 32, 80, 20, -20, -80, -32],
    "least by scatter, backward": [
        80, 32, 20, 80, -20, 8, 32, -8, 80, 80, 20, 80, -20, 32, 8, 32, -8, -32, -80, -80,
        -32, -80, -32, -80,
    ],
    "variance and mean, backward": [4, 4, 4, 80, 4, 80, -4, -80, -4, 80, 80, -80, -80, -4, -4],
    "a number to a power": [20, 8, -8],
    "times powers of two": [16, 8, -8, 80, -16],
    "gamma of many": [12, 60, -12, 20, -60],
    "group norm of halves": [12, 1200, 24, 24, 48, 48, 96, 96, -96, -96, -48, -48, -24, -24, -12],
    "group norm of rows, backward": [48, 48, 48, 48, 24, 24, -24, -24, -48, -48, -48],
    "layer norm, from a sum": [4, 160, 40, 40, 160, -160, -4],
    "RMS norm, of many rows": [4, 2800000, 40, 2800000, 87520, 40, -40, -87520, -2800000, -4],
    "linear of a vector": [4, 20, 16, -16, 80, 16, -16, 16, -4],
    "coins of halves": [14, 28, -28],
    "renorm of halves": [30, 12, 6, -6, -12],
    "largest of lists": [4, 4, 16, -16],
    "distance from a number": [100, 4, -100],
    "QR of several": [120, 72, 24, 16, 16, -16, -16, 4, -4, -24],
    "unpooling a transposed": [48, 144, -48],
}  # fmt: skip


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("case", CASES)
def test_an_operator_requests_what_torch_requests(case):
    x = torch.zeros(8, 8, device="cuda", requires_grad=True)
    (x @ x).sum().backward()  # the workspace first
    del x
    assert own_allocations(CASES[case]()) == TAKEN[case]
