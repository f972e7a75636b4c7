"""Value-dependent shapes: a bound, or a given number."""

import pytest
import torch

import nbmem
from nbmem.views.exports.report import report_json
from nbmem.views.html import render_html
from nbmem.views.text import render_text
from nbmem.virtual import warnings

ROWS, COLUMNS = 1000, 8


def x():
    return torch.randn(ROWS, COLUMNS, device="cuda")


def ids():
    """Make ids too large for the card to follow their values."""
    return torch.randint(1, 4, (20_000,), device="cuda")


@pytest.mark.parametrize(
    ("call", "size", "note"),
    [
        (lambda: x().nonzero(), (8000, 2), warnings.NONZERO),
        (lambda: torch.where(x() > 0)[0], (8000,), warnings.NONZERO),
        (lambda: x()[x() > 0], (8000,), warnings.NONZERO),
        (lambda: x()[x().sum(1) > 0], (1000, 8), warnings.NONZERO),
        (lambda: x().masked_select(x() > 0), (8000,), warnings.MASKED_SELECT),
        (lambda: torch.unique(x()), (8000,), warnings.UNIQUE),
        (lambda: torch.unique(x(), dim=1), (1000, 8), warnings.UNIQUE),
        (lambda: torch.unique_consecutive(ids()), (20_000,), warnings.UNIQUE),
        (lambda: ids().repeat_interleave(ids()), (20_000,), warnings.REPEAT),
        (lambda: torch.bincount(ids() * 2), (1,), warnings.BINS),
    ],
)
def test_an_unknown_size_takes_a_bound_by_name(gpu, call, size, note):
    assert call().size() == size
    assert note in gpu.notes


def test_where_all_is_assumed_to_be_found_it_is_known_where(gpu):
    """A loop over the experts that got tokens runs each of them, once."""
    assert [int(hit) for hit in (torch.randn(4, device="cuda") > 0).nonzero()] == [0, 1, 2, 3]
    rows, columns = torch.where(torch.randn(2, 2, device="cuda") > 0)
    assert (rows.tolist(), columns.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])


@pytest.mark.parametrize(
    ("call", "size"),
    [
        (lambda: torch.nonzero_static(x(), size=10), (10, 2)),
        (lambda: ids().repeat_interleave(ids(), output_size=50_000), (50_000,)),
        (lambda: torch.bincount(ids(), minlength=4), (4,)),
        (lambda: torch.tensor([0, 3, 3], device="cuda").nonzero(), (2, 1)),
        (lambda: torch.unique(torch.tensor([[1, 2], [1, 2]], device="cuda"), dim=0), (1, 2)),
    ],
)
def test_what_is_told_or_known_is_exact(gpu, call, size):
    assert call().size() == size
    assert not [note for note in gpu.notes if "assumed," in note]


@pytest.mark.parametrize(
    "count", [lambda: torch.bincount(ids(), minlength=6), lambda: torch.histc(ids(), 6, 0, 5)]
)
def test_unknown_counts_add_up_so_that_tokens_can_be_sent_to_experts(gpu, count):
    counts = count().tolist()
    parts = torch.ones(20_000, 4, device="cuda").split([int(n) for n in counts])
    assert len(parts) == 6
    assert warnings.COUNTS in gpu.notes


def test_reports_say_what_they_rest_on(gpu):
    with nbmem.trace() as trace:
        kept = torch.compile(lambda a: a[a > 0], backend="aot_eager")(x())
    report = trace.report()
    for note in (warnings.NONZERO, warnings.COMPILE):
        assert note in report.notes
        assert note in report_json(report)["notes"]
        assert note[:40] in render_text(report)
        assert note[:40] in render_html(report)
    assert warnings.VALUES not in report.notes
    del kept


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("experts", "note"),
    [("eager", warnings.NONZERO), ("grouped_mm", warnings.COUNTS), ("batched_mm", None)],
)
def test_tokens_reach_their_experts(gpu, experts, note):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.MixtralConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, num_local_experts=4, vocab_size=100,
    )  # fmt: skip
    config._experts_implementation = experts
    model = transformers.MixtralForCausalLM(config).cuda().bfloat16()
    tokens = torch.randint(0, 100, (2, 32), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert warnings.on_figures(gpu.notes) == ([] if note is None else [note])
