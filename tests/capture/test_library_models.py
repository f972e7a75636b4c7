"""What a library's models can do is read from their classes."""

import pytest
import torch

from nbmem.capture.program.library_models import head_of, is_adapted, library_models
from nbmem.capture.tensors.module_tree import ModuleTree


class Words(torch.nn.Module):
    def __init__(self, *heads):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(100, 8), torch.nn.Embedding(16, 8)
        self.heads = torch.nn.ModuleList(heads)


def test_the_layer_that_scores_words_has_a_row_for_each():
    model = Words(torch.nn.Linear(8, 16), torch.nn.Linear(8, 100))
    assert head_of(ModuleTree(model)) == {"path": "heads.1", "words": 100, "width": 8, "bias": True}


def test_a_layer_that_shares_the_embeddings_weight_is_found():
    model = Words(torch.nn.Linear(8, 100, bias=False))
    model.heads[0].weight = model.words.weight
    assert head_of(ModuleTree(model))["path"] == "heads.0"


@pytest.mark.parametrize("sizes", [(), (50,), (100, 100)])
def test_without_exactly_one_such_layer_none_is_named(sizes):
    model = Words(*(torch.nn.Linear(8, size) for size in sizes))
    assert head_of(ModuleTree(model)) is None


def test_a_models_own_classes_are_no_librarys():
    model = Words()
    tree = ModuleTree(model)
    assert library_models(tree) == []
    assert not is_adapted(tree)


def test_a_transformer_says_what_it_can_do():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=100, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, attn_implementation="eager",
    )  # fmt: skip
    inside = torch.nn.ModuleDict({"net": transformers.LlamaForCausalLM(config)})
    assert library_models(ModuleTree(inside)) == [
        {
            "path": "net",
            "library": "transformers",
            "class": "LlamaForCausalLM",
            "checkpoints": True,
            "attention": "eager",
            "sdpa": True,
            "grouped": False,
            "keeps": True,
            "plain": True,
        }
    ]
