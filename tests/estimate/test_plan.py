"""Remedies of a plan: exact bytes, and the reason where one has none."""

import importlib.util

import pytest

torch = pytest.importorskip("torch")

from nbmem import virtual
from nbmem.core.units import MIB, format_bytes
from nbmem.estimates.programs import programs
from nbmem.estimates.questions import planner
from nbmem.estimates.questions.predicted_savings import predict
from nbmem.estimates.remedies import BY_KEY, REMEDIES, exclude_each_other
from nbmem.estimates.remedies.blocks import repeated_blocks
from nbmem.estimates.remedies.compiled import Compile
from nbmem.estimates.runs.probe_run import Request, probe
from nbmem.views.exports.estimates import plan_json
from nbmem.views.plan import render_html, render_text

PLAIN = """
import torch
weights = [torch.nn.Parameter(torch.zeros(1024, 4096, device="cuda")) for _ in range(6)]
optimizer = torch.optim.Adam(weights)
for step in range(2):
    sum(w.sum() for w in weights).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WEIGHTS = 6 * 1024 * 4096 * 4
LOSS = 2 * 512
"""A scalar and its gradient, in the backward where the peak then is."""
TRAIN = """
import torch
from torch import nn
batch = 6000

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(1024, 4096, bias=False)
        self.relu = nn.ReLU()
        self.thin = nn.Linear(4096, 1024, bias=False)
    def forward(self, x):
        return x + self.thin(self.relu(self.wide(x)))

model = nn.Sequential(Block(), Block(), Block()).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(2):
    x = torch.randn(batch, 1024, device="cuda")
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def peak(tmp_path):
    """Return the allocated peak of the plain program under remedies."""
    (tmp_path / "plain.py").write_text(PLAIN)
    program = programs.script(str(tmp_path / "plain.py"))

    def run(*remedies):
        reply = probe(program, Request(card=virtual.find_card("T4"), remedies=remedies))
        assert reply.refused is None
        return reply.probe.allocated

    return run


def test_sgd_saves_both_of_adams_states_and_the_temporaries(peak):
    assert peak() - peak("sgd") == 3 * WEIGHTS - LOSS


def test_8_bit_adam_is_that_of_its_package(peak):
    pytest.importorskip("bitsandbytes", reason="the remedy runs its optimizer")
    count = WEIGHTS // 4
    state = 2 * count + 2 * 4 * (count // 256)  # bytes, and a float32 for each block of 256
    maps = 2 * 256 * 4  # what the bytes mean, once
    assert peak("adam8bit") - peak("sgd") == state + maps


def test_fused_and_foreach_off_save_the_temporaries(peak):
    steps = 6 * 512  # fused keeps the step counts on the card
    assert peak() - peak("fused") == WEIGHTS - LOSS - steps
    # One by one: the square root, its quotient, and the quotient of the weight before.
    assert peak() - peak("no_foreach") == WEIGHTS - WEIGHTS // 2


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "train.py"
    path.write_text(TRAIN)
    return str(path)


@pytest.fixture(scope="module")
def plan(here, path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compile, "missing", lambda: "It has tests of its own.")  # it takes long
        return here.plan(programs.script(path), "T4", every=True)


@pytest.fixture(scope="module")
def options(plan):
    return {option.key: option for option in plan.options}


def test_each_remedy_was_run_or_says_why_not(options):
    assert {kind.key for kind in REMEDIES} <= set(options)
    assert options["channels_last"].why_not == "The model has no two-dimensional convolution."
    if importlib.util.find_spec("bitsandbytes") is None:
        assert options["adam8bit"].why_not == "bitsandbytes is not installed in this environment."
    assert all(o.probe is not None or o.why_not for o in options.values())


@pytest.mark.long
def test_the_largest_batch_grows_with_what_is_saved(here, path, monkeypatch):
    kinds = [BY_KEY[key] for key in ("micro2", "checkpoint")]
    monkeypatch.setattr(planner, "REMEDIES", tuple(kinds))
    program = programs.script(path, vary="batch")
    found = here.plan(program, "T4", target=3000 * MIB, every=True)
    largest = {option.key: option.largest for option in found.options}
    assert found.target == 3000 * MIB
    assert largest["micro2"] > 1.5 * largest["as it is"]
    assert largest["checkpoint"] > 1.2 * largest["as it is"]


def test_remedies_of_one_group_are_no_pair(plan):
    pairs = [option.key.split("+") for option in plan.options if "+" in option.key]
    assert pairs
    assert not any(exclude_each_other(pair) for pair in pairs)


def test_no_run_goes_below_what_is_foreseen_as_the_least(path, options):
    base = probe(programs.script(path), Request(card=virtual.find_card("T4")))
    for key, option in options.items():
        if option.probe is not None and option.probe is not options["as it is"].probe:
            assert predict(base, key.split("+")).least <= option.probe.need, key


def test_what_fits_is_run_once(here, path):
    messages = []
    found = here.plan(programs.script(path), "T4", tell=messages.append)
    assert len(messages) == 1
    assert found.sentences[0].startswith("It fits as it is")
    assert all(o.probe is None for o in found.options[1:])
    assert "~" in render_text(found)


def test_the_cheapest_is_certain_with_fewer_runs(here, path, options):
    target = options["checkpoint"].probe.need + MIB
    messages, shown = [], []
    found = here.plan(
        programs.script(path), "T4", target=target, tell=messages.append,
        show=lambda answer, left: shown.append((str(answer), left)),
    )  # fmt: skip
    (cheapest,) = [o for o in found.options if o.cheapest]
    order = [kind.key for kind in REMEDIES]
    for option in found.options[1:]:
        if option.probe is not None or option.why_not or "+" in option.key:
            continue
        dearer = order.index(option.key) > order.index(cheapest.key)
        base = probe(programs.script(path), Request(card=virtual.find_card("T4")))
        assert dearer or predict(base, [option.key]).least > target
    assert cheapest.probe.fits
    assert 1 < len(messages) < len([o for o in options.values() if o.probe is not None])
    assert "not run yet is foreseen" in shown[0][0]
    assert shown[0][1].startswith("1 run, at most ")


def test_what_brings_nothing_is_no_row(plan):
    table = render_text(plan).partition("What it costs")[0]
    base = plan.options[0].probe
    for option in plan.options[1:]:
        if option.probe is not None and option.probe.need >= base.need:
            assert f"\n{option.title} " not in table
        elif option.probe is not None and "+" not in option.key:
            assert format_bytes(base.need - option.probe.need) in table


def test_the_views_show_the_same_rows(plan):
    text, page = render_text(plan), render_html(plan)
    for option in plan.options:
        if "+" not in option.key:
            assert option.title in text
            assert option.title in page
    assert plan_json(plan)["options"][0]["key"] == "as it is"


def test_a_batch_that_nobody_knows_is_no_micro_batch(options):
    assert "name it with --batch" in options["micro2"].why_not


def test_blocks_are_found_by_structure():
    from torch import nn

    block = lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())  # noqa: E731
    deep = nn.Module()
    deep.stem = nn.Linear(4, 4)
    deep.blocks = nn.ModuleList(block() for _ in range(3))
    assert repeated_blocks(deep) == list(deep.blocks)
    assert repeated_blocks(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))) == []
    twice = nn.Sequential(nn.Sequential(block(), block()), nn.Linear(4, 4))
    assert repeated_blocks(twice) == list(twice[0])


def test_unified_memory_is_priced_and_never_before_what_suffices(here, path, options):
    target = options["as it is"].probe.need - 200 * MIB
    found = here.plan(programs.script(path), "T4", target=target)
    rows = {option.key: option for option in found.options}
    unified = rows["unified"]
    assert unified.probe.fits
    assert unified.probe.process == target
    assert unified.probe.allocated == rows["as it is"].probe.allocated
    assert "s over PCIe 3.0" in unified.price
    assert "rmm.reinitialize(managed_memory=True" in unified.diff
    (cheapest,) = [option for option in found.options if option.cheapest]
    assert cheapest.key != "unified"
    assert options["unified"].why_not == "The program fits, so nothing would be paged."


def test_where_nothing_else_suffices_unified_memory_does(here, tmp_path):
    (tmp_path / "plain.py").write_text(
        "import torch\n"
        'weights = torch.nn.Parameter(torch.zeros(256, 1 << 20, device="cuda"))\n'
        "for step in range(3):\n"
        "    weights.sum().backward()\n"
        "    weights.grad = None\n"
    )
    found = here.plan(programs.script(str(tmp_path / "plain.py")), "T4", target=1500 * MIB)
    (cheapest,) = [option for option in found.options if option.cheapest]
    assert cheapest.key == "unified"
    # A GiB of weights and one of gradients, in half the room: the driver moves all of both.
    assert "pages " in cheapest.price
    assert "The cheapest that makes it fit: unified memory" in found.sentences[1]
