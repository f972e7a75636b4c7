"""Matching of checkpoint keys with the names of weights."""

import time

from nbmem.report.tips.rules.checkpoint_kept import _ends, _is_weight


def test_a_key_is_a_weights_end_with_its_form():
    ends = _ends({"model.layer.0.weight": "(4, 4) float32", "model.bias": "(4,) float32"})
    assert _is_weight(ends, "layer.0.weight", "(4, 4) float32")
    assert _is_weight(ends, "0.weight", "(4, 4) float32")
    assert _is_weight(ends, "bias", "(4,) float32")
    assert not _is_weight(ends, "layer.0.weight", "(4,) float32")
    assert not _is_weight(ends, "er.0.weight", "(4, 4) float32")
    assert not _is_weight(ends, "model.bias", "(4,) float32")
    assert not _is_weight(ends, None, "(4,) float32")


def test_fifty_thousand_keys():
    weights = {f"model.layers.{i}.weight": "(4, 4) float32" for i in range(50_000)}
    begun = time.process_time()
    ends = _ends(weights)
    assert all(_is_weight(ends, f"layers.{i}.weight", "(4, 4) float32") for i in range(50_000))
    assert time.process_time() - begun < 5
