"""Names of models that functions, libraries and errors hide."""

import copy

import numpy as np
import pytest
import torch

import nbmem
from nbmem.capture.tensors import modules
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import without_shape
from nbmem.report.ledger.card_ledger import CardLedger
from tests.capture.named_tensors import (
    LIBRARY,
    MIB,
    Policy,
    Spectral,
    at_end,
    card_ledger_of,
    live_bytes,
    network,
    reads_graphs,
    rows,
    steps_of,
)

nn, F, C = torch.nn, torch.nn.functional, Category
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]


def test_layers_that_only_a_method_calls_are_named_within_their_module():
    class Agent:
        pass

    def train():
        agent = Agent()
        agent.policy = Policy().cuda()
        steps_of(lambda policy, x: policy.act(x), agent.policy)

    (agent := Agent()).policy = Policy().cuda()
    kept = card_ledger_of(
        lambda: steps_of(lambda policy, x: policy.act(x), agent.policy), agent=agent
    )
    gone = card_ledger_of(train)

    expected = {"agent.policy.actor.weight (512, 512) float32"}
    for card_ledger in (kept, gone):
        names = {
            card_ledger.name(r) for r in np.flatnonzero(card_ledger.category == C.WEIGHTS).tolist()
        }
        assert {name for name in names if "weight" in name} == expected


def test_two_functions_that_call_two_models_alike():
    def evaluate(model):
        with torch.no_grad():
            model(rows())

    def fit(model):
        average = network()
        for _ in range(2):
            steps_of(lambda m, x: m(x), model)
            evaluate(average)

    def main():
        model = network()
        fit(model)

    card_ledger = card_ledger_of(main)

    named = {
        card_ledger.name(r) for r in np.flatnonzero(card_ledger.category == C.WEIGHTS).tolist()
    }
    found = {name for name in named if "2.weight" in name}
    assert found == {f"{m}.2.weight (512, 1024) float32" for m in ("model", "average")}


def test_a_model_that_took_anothers_place_has_its_name_and_so_had_the_former():
    class Manager:
        def switch(self, width):
            self.model = nn.Linear(1024, width).cuda()  # the former one lives until then

        def run(self):
            with torch.no_grad():
                return self.model(torch.rand(64, 1024, device="cuda"))

    def main():
        manager = Manager()
        for width in (512, 768, 640):
            manager.switch(width)
            manager.run()

    card_ledger = card_ledger_of(main)
    weights = np.flatnonzero(card_ledger.category == C.WEIGHTS).tolist()
    names = {card_ledger.name(row) for row in weights}
    assert {name for name in names if "weight" in name} == {
        f"manager.model.weight ({width}, 1024) float32" for width in (512, 768, 640)
    }


@pytest.mark.parametrize("many", [1, 20_000], ids=["small", "more than is looked at"])
def test_a_model_has_the_programs_name_and_not_that_of_the_library_that_trains_it(many):
    library = {"torch": torch, "MANY": many}
    exec(compile(LIBRARY, "/lib/site-packages/trainer.py", "exec"), library)

    def main():
        net = network()
        trainer = library["Trainer"](2)
        trainer.fit(net, rows())

    card_ledger = card_ledger_of(main)

    weights = np.flatnonzero(card_ledger.category == C.WEIGHTS).tolist()
    names = {without_shape(card_ledger.name(row)) for row in weights}
    assert names == {f"net.{part}" for part in ("0.weight", "0.bias", "2.weight", "2.bias")}


def test_a_model_that_an_error_came_before_has_the_names_of_the_functions_that_it_ended():
    class Trainer:
        pass

    def main():
        trainer = Trainer()
        trainer.model = network()
        average = copy.deepcopy(trainer.model)
        raise KeyError(average.training)  # the first batch, say

    with pytest.raises(KeyError), nbmem.trace("cell") as trace:
        main()

    card_ledger = CardLedger(trace.session)
    rows = np.flatnonzero(card_ledger.category == C.WEIGHTS).tolist()
    assert {card_ledger.name(r) for r in rows if "2.weight" in card_ledger.name(r)} == {
        f"{model}.2.weight (512, 1024) float32" for model in ("trainer.model", "average")
    }
    assert len(rows) == len(card_ledger.allocations)


def test_a_model_that_was_tried_on_the_host_has_its_first_forward_on_the_card():
    def cell():
        model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
        inner = nn.ReLU()
        inner(model(torch.randn(2, 512)))
        model.cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model(rows()).sum().backward()
            optimizer.step()

    with nbmem.trace("cell") as trace:
        cell()

    step = ["input", "forward", "backward", "optimizer"]
    assert [p.name for p in trace.report().phases] == ["load", *step, *step]


def test_weights_of_a_model_that_is_gone_keep_its_name():
    def cell():
        kept["optimizer"] = steps_of(lambda m, x: m(x), network())  # as a script's main() does

    card_ledger = card_ledger_of(cell, kept=(kept := {}))

    weights = {name for (name, category), _ in at_end(card_ledger).items() if category == C.WEIGHTS}
    assert weights == {
        "model.0.weight (1024, 512) float32",
        "model.2.weight (512, 1024) float32",
    }


def test_one_storage_of_several_weights_is_named_after_all_of_them():
    model = nn.LSTM(64, 128, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters())

    def cell():
        model(torch.randn(4, 2, 64, device="cuda"))[0].sum().backward()
        optimizer.step()

    card_ledger = card_ledger_of(cell, model=model, optimizer=optimizer)

    weights = {name for (name, category), _ in at_end(card_ledger).items() if category == C.WEIGHTS}
    assert weights == {"model.* of 8 tensors"}


@reads_graphs
def test_a_graph_that_a_variable_keeps_and_no_backward_runs_has_names():
    model, judge = network(), nn.Linear(512, 1).cuda()
    noise = rows()

    def cell():
        sample = None
        for step in range(3):
            judge(rows()).sum().backward()
            if step == 0:
                sample = model(noise)  # without no_grad
        del sample

    card_ledger = card_ledger_of(cell, model=model, judge=judge, noise=noise)

    made = card_ledger.phases.named(card_ledger.born_in, "forward") & (
        card_ledger.allocations.requested == MIB
    )
    names = {card_ledger.name(row) for row in made.nonzero()[0].tolist()}
    assert "saved by model.2 (256, 1024) float32" in names


def test_a_model_is_not_walked_for_each_part_that_is_called_by_itself(monkeypatch):
    walked, walk = [], modules.named_modules
    monkeypatch.setattr(modules, "named_modules", lambda m: (walked.append(m), walk(m))[1])

    layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(30)).cuda()

    def cell():
        x = rows(32)
        for layer in layers:
            x = layer(x)

    card_ledger = card_ledger_of(cell, layers=layers)

    assert sum(module is layers for module in walked) < len(layers)
    assert "layers.29.weight (512, 512) float32" in {name for name, _ in at_end(card_ledger)}


def test_what_a_view_keeps_is_not_said_to_be_its_shape():
    kept = []

    def cell():
        kept.append(rows(512)[:2])

    [(name, category)] = at_end(card_ledger_of(cell, kept=kept))
    assert (name, category) == ("kept[0] (2, 512) float32, a view", C.USER_TENSORS)
    assert without_shape(name) == "kept[0]"


@reads_graphs
def test_what_a_list_of_parameters_is_used_for_is_saved_by_the_module_that_has_the_list():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.vars = nn.ParameterList([nn.Parameter(torch.randn(512, 512)) for _ in range(2)])

        def forward(self, x):
            return F.linear(torch.tanh(F.linear(x, self.vars[0])), self.vars[1])

    net, seen = Functional().cuda(), []

    def cell():
        loss = net(rows()).sum()
        seen.append(loss)

    found = at_end(card_ledger_of(cell, net=net))
    assert {name for name, category in found if category is C.ACTIVATIONS} == {
        "saved by net (256, 512) float32"
    }


def test_what_a_module_had_at_its_first_call_is_its_own_though_the_call_replaced_it():
    def cell():
        model = Spectral().cuda()
        for _ in range(2):
            model(rows()).sum().backward()

    card_ledger = card_ledger_of(cell)
    (load,) = (span for _, span in card_ledger.phases.spans if span.name == "load")
    first = live_bytes(card_ledger, card_ledger.bounds(load)[1])
    assert sorted((int(c), b) for (_, c), b in first.items()) == [
        (C.WEIGHTS, MIB),
        (C.WEIGHTS, MIB),
        (C.BUFFERS, MIB),
    ]
    assert not (card_ledger.category == C.UNKNOWN).any()
