"""Caches of language models: one name and one category at every moment."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

import nbmem
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_parts import KV_CACHE
from nbmem.report.ledger.card_ledger import CardLedger
from nbmem.views.exports.report import report_json

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]
LAYERS, HEADS, DIM, BATCH, PROMPT, NEW = 3, 2, 16, 4, 32, 5


@pytest.fixture
def model(card):
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=HEADS,
        vocab_size=500,
    )
    return transformers.LlamaForCausalLM(config).cuda().eval()


def cache_bytes(length, batch=BATCH):
    return LAYERS * 2 * batch * HEADS * length * DIM * 4


def parts(trace):
    """Return the bytes of the KV cache at the end, and the highest, by category."""
    ledger = CardLedger(trace.session)
    every = ledger.ledgers(range(ledger.events + 1))
    for one in every:
        for category in Category:
            told = one.parts_of(category)
            assert not told or sum(size for _, size in told) == one[category]
    sizes = [
        {part.category: part.size for part in one.parts if part.name == KV_CACHE} for one in every
    ]
    assert {category for one in sizes for category in one} == {Category.INPUTS}
    return sizes[-1].get(Category.INPUTS, 0), max(one.get(Category.INPUTS, 0) for one in sizes)


def test_a_cache_that_the_user_keeps(model):
    ids = torch.zeros(BATCH, PROMPT, dtype=torch.long, device="cuda")
    with nbmem.trace("cell") as trace, torch.no_grad():
        out = model(ids, use_cache=True)
        past = out.past_key_values
        for _ in range(NEW):
            out = model(ids[:, :1], past_key_values=past, use_cache=True)
    at_end, most = parts(trace)
    assert at_end == cache_bytes(PROMPT + NEW)
    # One layer's keys or values exist twice while they grow.
    assert most == at_end + cache_bytes(PROMPT + NEW - 1) // (2 * LAYERS)
    told = report_json(trace.report())["parts_at_end"]
    assert told["inputs"][KV_CACHE] == at_end
    assert sum(told["inputs"].values()) == report_json(trace.report())["ledger_at_end"]["inputs"]
    names = [one.name for one in trace.report().holdings if one.name.startswith(KV_CACHE)]
    assert len(names) == 2 * LAYERS or len(names) == 2 * LAYERS + 1
    assert f"    {KV_CACHE}" in nbmem.views.text.render_text(trace.report())


@pytest.mark.parametrize("beams", [1, 2])
def test_what_generate_holds_while_it_runs(model, beams):
    ids = torch.zeros(BATCH, PROMPT, dtype=torch.long, device="cuda")
    with nbmem.trace("cell") as trace:
        model.generate(
            ids,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            num_beams=beams,
            do_sample=False,
            pad_token_id=0,
        )
    at_end, most = parts(trace)
    assert at_end == 0
    # The last token is not stored.
    last = cache_bytes(PROMPT + NEW - 1, BATCH * beams)
    assert most >= last


def test_a_static_cache_has_its_length_from_the_start(model):
    ids = torch.zeros(BATCH, PROMPT, dtype=torch.long, device="cuda")
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    with nbmem.trace("cell") as trace, torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)
    assert parts(trace) == (cache_bytes(64), cache_bytes(64))


class Legacy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.key = torch.nn.Linear(HEADS * DIM, HEADS * DIM)

    def forward(self, x, past_key_values=None):
        shape = (BATCH, x.shape[1], HEADS, DIM)
        new = [self.key(x).view(shape).transpose(1, 2).contiguous() for _ in range(2)]
        if past_key_values is None:
            return x, tuple(tuple(one.clone() for one in new) for _ in range(LAYERS))
        return x, tuple(
            tuple(torch.cat([old, one], 2) for old, one in zip(layer, new, strict=True))
            for layer in past_key_values
        )


def test_the_tuples_of_earlier_releases():
    model = Legacy().cuda()
    names = {}
    with nbmem.trace("cell", namespace=names) as trace, torch.no_grad():
        x = torch.zeros(BATCH, PROMPT, HEADS * DIM, device="cuda")
        _, past = model(x)
        for _ in range(NEW):
            _, past = model(x[:, :1], past_key_values=past)
        names["past"] = past
    at_end, most = parts(trace)
    assert at_end == cache_bytes(PROMPT + NEW)
    assert most == at_end + cache_bytes(PROMPT + NEW - 1)


def test_a_group_of_small_tensors_is_a_row_of_the_largest_holdings():
    with nbmem.trace("cell") as trace:
        large = [torch.empty(2**20 + 512 * i, device="cuda") for i in range(60)]
        small = [torch.empty(2**19, device="cuda") for _ in range(200)]
    del large
    found = [one for one in trace.report().holdings if one.requested == 2**21]
    assert len(found) == len(small)
    (group, *_) = nbmem.views.rows.group_holdings(trace.report().holdings)
    assert group.size_of_all == 200 * 2**21
