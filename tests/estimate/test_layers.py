"""Layers: the textbook's formulas, and bytes that are counted by hand."""

import pytest
import torch
from torch import nn

from nbmem.core.errors import UsageError
from nbmem.views.layers import render_html, render_text
from nbmem.views.repeated_layers import folded


@pytest.mark.parametrize(
    ("layer", "formula"),
    [
        (nn.Linear(30, 20), "30 x 20 + 20"),
        (nn.Linear(30, 20, bias=False), "30 x 20"),
        (nn.Conv2d(3, 64, 7), "3 x 64 x 7 x 7 + 64"),
        (nn.Conv2d(32, 64, 3, groups=32, bias=False), "32 / 32 x 64 x 3 x 3"),
        (nn.BatchNorm2d(64), "2 x 64"),
        (nn.LayerNorm(768), "2 x 768"),
        (nn.Embedding(1000, 64), "1000 x 64"),
    ],
)
def test_a_formula_gives_the_layers_parameters(layer, formula):
    from nbmem.estimates.questions.layers import formula as formula_of

    assert formula_of(layer) == formula
    count = eval(formula.replace("x", "*"))
    assert count == sum(p.numel() for p in layer.parameters())


@pytest.fixture(scope="module")
def model():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8, bias=False))


def test_the_bytes_are_those_by_hand(here, model):
    first, relu, last = here.layers(model, (32, 64)).rows
    assert (first.weights, first.gradients) == (4 * (64 * 256 + 256),) * 2
    assert first.optimizer == 2 * first.weights
    assert (first.output, relu.output, last.output) == (32 * 256 * 4, 32 * 256 * 4, 32 * 8 * 4)
    assert first.saved == 32 * 64 * 4
    assert relu.saved == 32 * 256 * 4  # for itself and for the layer after it
    assert last.saved == 0
    assert (first.forward_flops, last.forward_flops) == (2 * 32 * 64 * 256, 2 * 32 * 256 * 8)
    assert first.backward_flops == first.forward_flops  # the input needs no gradient
    assert last.backward_flops == 2 * last.forward_flops


def test_the_programs_own_optimizer_gives_the_state_bytes(here, model):
    momentum = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = here.layers(model, optimizer=momentum)
    assert found.optimizer == "of its own SGD"
    assert [row.optimizer for row in found.rows] == [row.weights for row in found.rows]
    assert found.rows[0].saved is None
    assert "need an input" in found.sentences[0]


def test_tied_weights_count_once(here):
    tied = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    tied[1].weight = tied[0].weight
    assert [row.parameters for row in here.layers(tied).rows] == [64, 0]


def test_layers_are_sorted_and_shown(here, model):
    found = here.layers(model, (32, 64), title="net").sorted("output")
    assert found.rows[-1].name == "2"
    assert "64 x 256 + 256" in render_text(found)
    assert "64 x 256 + 256" in render_html(found)
    with pytest.raises(UsageError, match="--sort size is no column"):
        found.sorted("size")
    pandas = pytest.importorskip("pandas")
    assert isinstance(found.to_frame(), pandas.DataFrame)


def test_equal_blocks_are_one_row(here):
    block = lambda: nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.0), nn.Linear(32, 8))  # noqa: E731
    model = nn.Sequential(nn.Linear(4, 8), *(block() for _ in range(12)))
    found = here.layers(model, (2, 4), title="net")
    text = render_text(found, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) < 20
    (wide,) = [line for line in text.splitlines() if line.startswith("1-12.0 ")]
    assert "12 x Linear" in wide
    assert sum(row.weights for row in found.rows) == sum(row.weights for row in folded(found.rows))
    assert "1-12.2" in render_html(found)
    assert len(found.rows) == 37
    # A dropout that gives out its input computes nothing, in neither direction.
    assert all(row.backward_flops == 0 for row in found.rows if row.kind == "Dropout")


def test_a_wrong_input_is_a_sentence(here, model):
    with pytest.raises(UsageError, match="does not run on that input"):
        here.layers(model, (32, 63))
