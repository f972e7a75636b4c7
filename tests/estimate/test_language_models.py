"""What a language model takes, before there is code: bytes that can be counted by hand."""

import dataclasses
import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import nbmem
from nbmem.core.errors import UsageError
from nbmem.estimates.language_models import context, measurement, models, question
from nbmem.estimates.language_models import program as programs
from nbmem.estimates.language_models.settings import check_length, for_card, settings_of
from nbmem.virtual.card_names import find_card
from tests.estimate.small_cards import small_card

WIDE, INNER, LAYERS, HEADS, WORDS = 256, 512, 1, 2, 4096
"""Sizes of a small Llama: heads of 64, half of them for keys and values."""
SHAPES = (
    *((WIDE, WIDE), (WIDE, WIDE // 2), (WIDE, WIDE // 2), (WIDE, WIDE)),
    *((WIDE, INNER), (WIDE, INNER), (INNER, WIDE)),
)
"""Inputs and outputs of a layer's linear parts."""
LINEAR = LAYERS * sum(a * b for a, b in SHAPES)
REST = 2 * WORDS * WIDE + (2 * LAYERS + 1) * WIDE
SEQ, BATCH, RANK = 256, 2, 8
TOKENS = SEQ * BATCH


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A config.json of a small Llama."""
    file = tmp_path_factory.mktemp("small") / "config.json"
    sizes = {
        "model_type": "llama", "hidden_size": WIDE, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": 2 * HEADS,
        "num_key_value_heads": HEADS, "vocab_size": WORDS, "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }  # fmt: skip
    file.write_text(json.dumps(sizes))
    return str(file)


@pytest.fixture
def ask(here, monkeypatch, config):
    """Estimate the small model in this process."""
    monkeypatch.setattr(question, "EstimateProcess", here.EstimateProcess)
    monkeypatch.setattr(context, "EstimateProcess", here.EstimateProcess)

    def ask_for(method, gpu="A100 40GB", seq=SEQ, **options):
        options = {"rank": RANK, "batch": BATCH, **options}
        return nbmem.estimate_model(config, gpu, method=method, seq=seq, **options)

    return ask_for


def sizes_of(answer):
    found = {part.name: part.size for part in answer.parts}
    assert sum(found.values()) == answer.allocated
    assert answer.allocated <= answer.reserved < answer.process
    return found


def test_full_training_is_weights_and_twice_as_much_of_adam(ask):
    answer = ask("full")
    found = sizes_of(answer)
    assert answer.parameters == answer.trained == LINEAR + REST
    assert found["weights"] == 2 * (LINEAR + REST)
    steps = 4 * (7 * LAYERS + 2 * LAYERS + 3)  # one float for each parameter, fused
    assert found["optimizer state"] == 2 * 2 * (LINEAR + REST) + steps
    assert found["logits"] in {3 * TOKENS * WORDS * 4, 2 * TOKENS * WORDS * 4}


def test_lora_has_float32_adapters_on_every_linear_layer(ask):
    answer = ask("lora")
    found = sizes_of(answer)
    adapters = LAYERS * RANK * sum(a + b for a, b in SHAPES)
    assert answer.trained == adapters
    assert found["weights"] == 2 * (LINEAR + REST)
    assert found["adapters"] == 4 * adapters
    assert found["optimizer state"] == 8 * adapters + 4 * 2 * 7 * LAYERS
    assert "get_peft_model" in answer.program
    assert "nbmem" not in answer.program


def test_qlora_packs_two_weights_into_a_byte_with_their_scales(ask):
    found = sizes_of(ask("qlora"))
    scales = [-(-a * b // 64) for a, b in SHAPES]
    outer = sum(4 * -(-count // 256) for count in scales)
    codes = len(SHAPES) * (16 * 4 + 256 * 4 + 4)  # of a weight, of a scale, and an offset
    packed = LINEAR // 2 + LAYERS * (sum(scales) + outer + codes)
    assert found["weights, 4-bit"] == pytest.approx(packed, abs=2 * 1024)  # one code is shared
    assert found["weights"] == 4 * REST


def test_a_generation_keeps_keys_and_values_of_each_token(ask):
    answer = ask("generate", seq=1000)
    found = sizes_of(answer)
    token = 2 * LAYERS * HEADS * 64 * 2
    kept = found["KV cache"] / (token * BATCH)
    assert kept == int(kept)
    assert 1000 - programs.NEW <= kept <= 1000
    assert found["weights"] == 2 * (LINEAR + REST)
    assert answer.trained == 0


def test_only_cards_with_other_kernels_need_a_run_of_their_own(ask, monkeypatch):
    monkeypatch.setattr(question, "CARDS", tuple(map(find_card, ("H200", "L4", "T4", "H100"))))
    runs = []
    answer = ask("lora", "all", tell=runs.append)
    assert [one.card for one in answer.cards] == ["T4", "L4", "H100 80GB", "H200"]
    assert all(one.fits and one.margin for one in answer.cards)
    assert [text.partition(":")[0] for text in runs] == ["H100 80GB", "T4"]  # in float16 there
    assert "The smallest of the cards below on which it fits: T4." in " ".join(str(answer).split())


def test_a_card_without_bfloat16_gets_float16(config):
    settings = settings_of(config)
    assert for_card(settings, find_card("T4")).dtype == "float16"
    assert for_card(settings, find_card("L4")).dtype == "bfloat16"
    assert for_card(settings_of(config, dtype="bf16"), find_card("T4")).dtype == "bfloat16"


def test_the_longest_context_runs_and_the_next_does_not(here, monkeypatch, config):
    monkeypatch.setattr(context, "EstimateProcess", here.EstimateProcess)
    card = dataclasses.replace(small_card(700), key="small", capability=(8, 0))
    monkeypatch.setattr(context, "card_for", lambda _gpu: card)
    answer = nbmem.fit_context(config, method="lora", batches=(2,), margin=0.0)
    assert [row.batch for row in answer.rows] == [2]
    for row in answer.rows:
        fits = [_fits(config, card, row.batch, row.seq + more) for more in (0, context.STEP)]
        assert fits == [True, False]
    tokens = {part.name: part.size for part in answer.per_token}
    assert tokens["logits"] == 3 * WORDS * 4
    assert "always" in str(answer)
    assert answer.to_json()["rows"][0]["seq"] == answer.rows[0].seq


def _fits(config, card, batch, seq):
    """Run a length on the card with its limit."""
    settings = settings_of(config, method="lora", seq=seq, batch=batch, dtype="bfloat16")
    written = programs.write_program(models.find_model(config), settings)
    source = question.Program(title="small", source=written.run, file="<program>")
    return measurement.run_on_card(source, written.run, question.Request(card=card)).fits


def test_context_ends_where_the_model_has_no_more_positions(here, monkeypatch, config):
    monkeypatch.setattr(context, "EstimateProcess", here.EstimateProcess)
    answer = nbmem.fit_context(config, "H100", method="generate", batches=(1,))
    assert (answer.rows[0].seq, answer.rows[0].limited) == (8192, True)
    assert "all that the model has positions for" in " ".join(str(answer).split())


NAMES = {
    "llama-3.1-8b": "llama-3.1-8b",
    "meta-llama/Llama-3.2-3B-Instruct": "llama-3.2-3b",
    "llama3.1:8b": "llama-3.1-8b",
    "unsloth/llama-3-8b-bnb-4bit": "llama-3.1-8b",
    "mistral-7b": "mistral-7b-v0.3",
    "mistralai/Mistral-7B-Instruct-v0.1": "mistral-7b-v0.1",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "google/gemma-2-9b-it": "gemma-2-9b",
    "gpt2": "gpt2",
    "phi-3": "phi-3-mini",
    "microsoft/Phi-3-mini-4k-instruct": "phi-3-mini",
    "tinyllama": "tinyllama-1.1b",
    "llama-2-7b-chat-hf": "llama-2-7b",
    "LlamaForCausalLM": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_people_type(name):
    assert models.find_model(name).title == NAMES[name]


def test_an_unknown_name_says_which_are_known_and_what_to_do():
    with pytest.raises(UsageError) as raised:
        models.find_model("llama-3.1-9b")
    assert "Did you mean llama-3.1-8b?" in str(raised.value)
    assert "--model path/to/config.json" in str(raised.value)


def test_a_file_that_is_no_configuration_is_refused(tmp_path):
    file = tmp_path / "config.json"
    file.write_text("[]")
    with pytest.raises(UsageError, match="no configuration of transformers"):
        models.find_model(str(file))
    with pytest.raises(UsageError, match="Cannot read"):
        models.find_model(str(tmp_path / "none.json"))


def test_no_sequence_is_longer_than_a_model_has_positions_for():
    assert check_length(settings_of("gpt2"), 1024).seq == 1024
    assert check_length(settings_of("gpt2", seq=1024), 1024).seq == 1024
    with pytest.raises(UsageError, match="Ask for --seq 1024 or less"):
        check_length(settings_of("gpt2", seq=2048), 1024)
    assert measurement.positions_of(None, models.find_model("gpt2").code) == 1024


def test_settings_are_checked():
    with pytest.raises(UsageError, match="Did you mean qlora"):
        settings_of("gpt2", method="qlor")
    with pytest.raises(UsageError, match="cannot be trained"):
        settings_of("gpt2", method="full", bits=4)
    assert settings_of("gpt2", method="inference").method == "generate"


KINDS = ("gpt2", "opt-125m", "llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "gemma-2-2b", "phi-2")


def _count(name):
    return measurement._sizes(models.find_model(name).code).parameters


@pytest.mark.parametrize("name", KINDS)
def test_a_published_model_has_the_published_number_of_parameters(name):
    assert _count(name) == models.published()[name]


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(models.published()) - set(KINDS)))
def test_every_published_model_has_the_published_number_of_parameters(name):
    assert _count(name) == models.published()[name]


def test_the_command_line_estimates_and_shows_the_program(ask, config, capsys, tmp_path):
    from nbmem.frontends.cli import main

    file = tmp_path / "answer.json"
    words = ["estimate", "--model", config, "--method", "generate", "--seq", "64", "--gpu", "T4"]
    assert main([*words, "--program", "--json", str(file)]) == 0
    output = capsys.readouterr().out
    assert "of the 15.00 GiB of a Tesla T4: it fits." in output
    assert "dtype=torch.float16" in output.partition("The program that was run:")[2]
    found = json.loads(file.read_text())
    assert sum(found["parts"].values()) == found["allocated"]
    assert found["card"]["name"] == "Tesla T4"
    compile(found["program"], "<program>", "exec")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fit", "--vary", "batch"], "Name a script"),
        (["fit", "--vary", "batch", "--model", "gpt2"], "write context"),
        (["fit", "--vary", "context", "--model", "gpt2", "--batch", "x"], "write 1,2,4,8"),
        (["fit", "train.py", "--vary", "context", "--model", "gpt2"], "not both"),
        (["estimate", "--model", "gpt3"], "Did you mean gpt2?"),
        (["estimate", "--model", "gpt2", "--gpu", "T40"], "Did you mean T4"),
    ],
)
def test_a_wrong_question_is_refused_in_a_sentence(words, sentence, capsys):
    from nbmem.frontends.cli import main

    assert main(words) == 2
    assert sentence in capsys.readouterr().err
