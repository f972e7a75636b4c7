"""Matching of checkpoint keys with the names of weights."""

import time

from nbmem.report.tips.weight_names import WeightNames, last_key, shared_prefix


def test_a_key_is_a_weights_end_with_its_form():
    weights = WeightNames({"model.layer.0.weight": "(4, 4) float32", "model.bias": "(4,) float32"})
    assert weights.match("layer.0.weight", "(4, 4) float32")
    assert weights.match("0.weight", "(4, 4) float32")
    assert weights.match("bias", "(4,) float32")
    assert not weights.match("layer.0.weight", "(4,) float32")
    assert not weights.match("er.0.weight", "(4, 4) float32")
    assert not weights.match("model.bias", "(4,) float32")


def test_fifty_thousand_keys():
    names = {f"model.layers.{i}.weight": "(4, 4) float32" for i in range(50_000)}
    begun = time.process_time()
    weights = WeightNames(names)
    assert all(weights.match(f"layers.{i}.weight", "(4, 4) float32") for i in range(50_000))
    assert time.process_time() - begun < 5


def test_a_prefix_that_all_keys_share_is_left_out():
    weights = WeightNames({"net.0.weight": "(4, 4) float32", "net.0.bias": "(4,) float32"})
    keys = ["model.0.weight", "model.1.bias"]
    assert shared_prefix(keys) == "model."
    assert not weights.match(keys[0], "(4, 4) float32")
    assert weights.match(keys[0], "(4, 4) float32", "model.")
    assert not weights.match(keys[1], "(4,) float32", "model.")


def test_the_last_key_is_without_what_a_wrapper_puts_before_it():
    assert last_key("checkpoint['model']['module._orig_mod.0.weight']") == "0.weight"
    assert last_key("local state_dict['0.weight'] of main()") == "0.weight"
    assert last_key("model.0.weight") is None
