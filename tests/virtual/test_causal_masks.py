"""Detection of causal masks, also with unknown values."""

import torch
from torch.nn.modules import transformer

from tests.virtual.allocation_history import requested_sizes


def test_a_square_mask_of_unknown_values_is_causal(gpu):
    detect, square = transformer._detect_is_causal_mask, torch.randn(35, 35, device="cuda")
    assert detect(square) is True
    assert detect(square, is_causal=False) is False
    assert detect(torch.randn(8, 35, 35, device="cuda")) is False
    assert detect(torch.randn(35, 40, device="cuda"), size=35) is False
    assert detect(torch.zeros(35, 35)) is False  # the host's values are there
    assert detect(None) is False


def test_a_mask_whose_values_are_known_is_compared(gpu):
    causal = torch.nn.Transformer.generate_square_subsequent_mask
    assert transformer._detect_is_causal_mask(causal(3, device="cuda")) is True
    assert transformer._detect_is_causal_mask(torch.zeros(3, 3, device="cuda")) is False


def test_an_encoder_pads_no_causal_mask(gpu):
    """Bytes of word_language_model on an H100 with torch 2.11: 40 masks of 35 x 40 less."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0).cuda()
    encoder = torch.nn.TransformerEncoder(layer, 1)
    x = torch.ones(35, 4, 16, device="cuda", requires_grad=True)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(35).cuda()
    sizes, _ = requested_sizes(lambda: encoder(x, mask))
    assert 35 * 40 * 4 not in sizes
    assert 35 * 35 * 4 in sizes  # the causal mask that it is compared with
