"""The longest context of a program of the user's: its models get other sequences."""

import dataclasses

import pytest
import torch

pytest.importorskip("transformers")

from nbmem import virtual
from nbmem.core.errors import UsageError
from nbmem.estimates.language_models import api, context, measurement
from nbmem.estimates.options import with_length
from nbmem.estimates.programs import programs
from nbmem.estimates.programs.token_shapes import NEW, TokenShapes
from nbmem.estimates.runs.probe_run import Request
from tests.estimate.small_cards import small_card

WIDE, INNER, HEADS, WORDS, LENGTH = 128, 256, 2, 8192, 256
MODEL = f"""
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size={WIDE}, intermediate_size={INNER}, num_hidden_layers=1,
    num_attention_heads={HEADS}, vocab_size={WORDS}, max_position_embeddings=1 << 20)
model = LlamaForCausalLM(config).to("cuda", torch.float16)
words = torch.ones(2, {LENGTH}, dtype=torch.long, device="cuda")
"""
TRAINING = f"""{MODEL}
labels = words.clone()
scores = model(words, attention_mask=torch.ones_like(words), use_cache=False).logits
torch.nn.functional.cross_entropy(scores.view(-1, {WORDS}), labels.view(-1)).backward()
"""
GENERATION = f"""{MODEL}
with torch.inference_mode():
    model.generate(words, attention_mask=torch.ones_like(words), max_new_tokens=18)
"""


@pytest.fixture
def ask(here, monkeypatch):
    """Search in this process, on a card of so many MiB."""
    monkeypatch.setattr(context, "EstimateProcess", here.EstimateProcess)

    def search(source, mib, batches=(2,)):
        card = dataclasses.replace(small_card(mib), capability=(8, 0))
        monkeypatch.setattr(context, "card_for", lambda _gpu: card)
        program = programs.cell(source, {}, title="In [1]")
        return card, api.own_context_answer(program, None, batches, namespace={}, margin=0.0)

    return search


def test_the_longest_context_of_a_training_cell_runs_and_the_next_does_not(ask):
    card, answer = ask(TRAINING, 400)
    (row,) = answer.rows
    assert "In [1] with 2 sequences fits" in str(answer)
    assert "its model gets 2 x 256 tokens." in " ".join(str(answer).split())
    for more, fits in ((0, True), (context.STEP, False)):
        longer = TRAINING.replace(f"(2, {LENGTH},", f"(2, {row.seq + more},")
        cell = programs.cell(longer, {}, title="longer")
        assert measurement.run_on_card(cell, longer, Request(card=card)).fits is fits
    tokens = {part.name: part.size for part in answer.per_token}
    assert tokens["logits"] == 4 * WORDS * 2  # the scores, their logarithm and a gradient of each
    assert answer.to_json()["per_pair"] == {}


def test_a_generation_keeps_keys_and_values_of_prompt_and_answer(ask):
    _, answer = ask(GENERATION, 170)
    tokens = {part.name: part.size for part in answer.per_token}
    assert tokens["KV cache"] == 2 * WIDE * 2
    assert answer.rows[0].seq > LENGTH
    output = " ".join(str(answer).split())
    assert f"2 x {LENGTH + 18} tokens, 18 of them generated; here {NEW} are" in output


def test_a_program_without_tokens_is_refused(ask):
    with pytest.raises(UsageError, match="no context to vary"):
        ask("import torch\ntorch.nn.Linear(4, 4).cuda()(torch.ones(2, 4, device='cuda'))", 400)


class Reader(torch.nn.Module):
    """A model that notes the shapes of what it reads."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, words, **others):
        self.seen.append([tuple(words.shape), *(tuple(t.shape) for t in others.values())])
        return words


@pytest.fixture
def card():
    virtual.activate("T4")
    yield
    virtual.deactivate()


@pytest.mark.usefixtures("card")
def test_what_has_the_shape_of_the_tokens_changes_with_them():
    words = torch.arange(8, device="cuda").view(2, 4)
    labels, shifted, weights = words.clone(), words[:, 1:].clone(), torch.zeros(2, 4)
    mask = torch.zeros(2, 1, 4, 4, dtype=torch.bool, device="cuda")
    model = Reader()
    with TokenShapes(batch=3, seq=10).applied():
        model(words, mask=mask, places=torch.arange(4), size=torch.tensor(4))
        model(words[:, :1])  # a token at a time is what a loop with a cache decodes
    assert model.seen == [[(3, 10), (3, 1, 10, 10), (10,), ()], [(3, 1)]]
    assert labels.shape == (3, 10)  # for a loss beside the model
    assert shifted.shape == (3, 9)
    assert weights.shape == (2, 4)  # not of whole numbers


@pytest.mark.usefixtures("card")
def test_its_own_shape_is_known_from_the_longest_call():
    shapes, model = TokenShapes(), Reader()
    with shapes.applied():
        model(torch.ones(4, 7, dtype=torch.long))
        model(torch.ones(2, 9, dtype=torch.long))
    assert (shapes.own_batch, shapes.own_seq, shapes.tokens) == (2, 9, 18)
    assert model.seen == [[(4, 7)], [(2, 9)]]


def test_a_variable_of_this_length_changes_with_it():
    source = "block_size = 64\nmax_length = 128\n"
    program = programs.cell(source, {})
    assert with_length(program, 64, {}).binding.name == "block_size"
    assert with_length(program, 128, {}).binding.name == "max_length"
    assert with_length(program, 32, {}).binding is None


def test_context_is_the_length_of_sequences_where_no_variable_has_that_name(tmp_path, capsys):
    from nbmem.estimates.language_models.options import bind_or_context
    from nbmem.frontends.cli import main

    assert bind_or_context(programs.cell("context = 5", {}), "context").binding.value == 5
    assert bind_or_context(programs.cell("x = 5", {}), "context").binding is None
    with pytest.raises(UsageError, match="not assigned"):
        bind_or_context(programs.cell("x = 5", {}), "batch")
    file = tmp_path / "train.py"
    file.write_text("x = 5\n")
    assert main(["fit", str(file), "--vary", "context", "--step", "8"]) == 2
    assert "leave out --between, --step and --ranks" in " ".join(capsys.readouterr().err.split())
