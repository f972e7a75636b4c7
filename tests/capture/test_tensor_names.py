"""Names of optimizers' state, gradients, inputs and workspaces."""

import gc

import numpy as np
import pytest
import torch

import nbmem
from nbmem.core.session.categories import Category
from nbmem.report.ledger.card_ledger import CardLedger
from tests.capture.named_tensors import (
    MIB,
    Batch,
    Buffer,
    OwnAdam,
    at_end,
    card_ledger_of,
    in_step,
    network,
    reads_graphs,
    rows,
)

nn, F, C = torch.nn, torch.nn.functional, Category
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]


def test_an_optimizer_of_the_users_own_keeps_optimizer_state_and_nothing_else():
    model = network()
    optimizer = OwnAdam(model.parameters())

    def cell():
        for _ in range(3):
            F.mse_loss(model(rows()), rows()).backward()
            optimizer.step()
            optimizer.zero_grad()

    card_ledger = card_ledger_of(cell, model=model, optimizer=optimizer)
    ledger = card_ledger.ledger(card_ledger.events)
    assert ledger[C.OPTIMIZER_STATE] == ledger[C.WEIGHTS] == (2 * 512 * 1024 + 1536) * 4
    assert ledger[C.UNKNOWN] == 0
    found = at_end(card_ledger)
    assert found["optimizer.moments[0] (1024, 512) float32", C.OPTIMIZER_STATE] == 2 * MIB


def test_an_optimizer_that_keeps_state_by_its_parameters_is_one():
    class ByParameter:
        """Holds its parameters deeper than names are looked for."""

        def __init__(self, parameters):
            self.groups = [[[[list(parameters)]]]]
            self.state = {}

        def step(self):
            for p in self.groups[0][0][0][0]:
                average = self.state.setdefault(p, {"average": torch.zeros_like(p)})["average"]
                p.data.sub_(average.lerp_(p.grad, 0.1), alpha=0.1)

    model = network()
    optimizer = ByParameter(model.parameters())

    def cell():
        for _ in range(2):
            model.zero_grad()
            model(rows()).sum().backward()
            optimizer.step()

    card_ledger = card_ledger_of(cell, model=model, optimizer=optimizer)

    ledger = card_ledger.ledger(card_ledger.events)
    assert ledger[C.OPTIMIZER_STATE] == ledger[C.WEIGHTS]
    assert ledger[C.USER_TENSORS] == ledger[C.UNKNOWN] == 0


def test_a_class_with_a_method_step_that_holds_no_parameters_is_no_optimizer():
    class Schedule:
        def __init__(self):
            self.table = rows(1024)

        def step(self):
            pass

    schedule = Schedule()
    found = at_end(card_ledger_of(lambda: rows(1).sum(), schedule=schedule))
    assert found == {("schedule.table (1024, 512) float32", C.USER_TENSORS): 2 * MIB}


def test_objects_slots_and_closures_have_names():
    def lookup():
        table = rows(4096)
        return lambda: table

    names = {"batch": Batch(rows(1024), rows(512)), "buffer": Buffer(), "lookup": lookup()}
    found = at_end(card_ledger_of(lambda: rows(1).sum(), **names))
    assert found == {
        ("batch.x (1024, 512) float32", C.USER_TENSORS): 2 * MIB,
        ("batch.target (512, 512) float32", C.USER_TENSORS): MIB,
        ("buffer.store (2048, 512) float32", C.USER_TENSORS): 4 * MIB,
        ("table closed over by lookup (4096, 512) float32", C.USER_TENSORS): 8 * MIB,
    }


def test_the_variables_of_a_function_that_trains_have_its_name():
    model = network()

    def train():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            x, weight = rows(512), rows(512)
            batch = Batch(x + weight, rows(512))
            optimizer.zero_grad()
            ((model(batch.x) - batch.target) * weight).mean().backward()
            optimizer.step()

    card_ledger = card_ledger_of(train)
    found = in_step(card_ledger, "backward", 1)
    for name in ("x", "batch.target"):
        assert found[f"local {name} of train() (512, 512) float32", C.USER_TENSORS] == MIB
    assert card_ledger.ledger(card_ledger.peak(0, card_ledger.events))[C.UNKNOWN] == 0


def test_what_nothing_shows_is_unknown_and_the_report_says_what_would_name_it():
    model = network()

    def cell():
        for _ in range(3):
            model(rows()).sum().backward()
            held = [rows(8192) for _ in range(2)]
            model(held[0]).sum().backward()
            held.pop()
            model.zero_grad()

    def nothing(*_, **__):
        return iter(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nbmem.capture.record.tensor_labels.tensors.in_frames", nothing)
        with nbmem.trace("cell", namespace={"model": model}) as trace:
            cell()
    card_ledger = CardLedger(trace.session)
    ledger = card_ledger.ledger(card_ledger.peak(0, card_ledger.events))
    assert ledger[C.UNKNOWN] == 8192 * 512 * 4
    assert ledger[C.INPUTS] == 8192 * 512 * 4
    (note,) = [n for n in trace.report().notes if "are unknown" in n]
    assert "variable that still holds them when the cell ends gives them a name" in note


def test_steps_that_do_the_same_look_the_same():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    names = {"model": model, "optimizer": optimizer, "losses": []}

    def cell():
        for _ in range(4):
            x, y = rows(), torch.randint(0, 512, (256,), device="cuda")
            names["logits"] = model(x)
            loss = F.cross_entropy(names["logits"], y)
            loss.backward()
            names["losses"].append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()

    with nbmem.trace("cell", namespace=names) as trace:
        cell()
    card_ledger = CardLedger(trace.session)
    steps = [in_step(card_ledger, "backward", step) for step in (1, 2, 3)]
    assert steps[0] == steps[1] == steps[2]
    assert steps[0]["logits (256, 512) float32", C.ACTIVATIONS] == 256 * 512 * 4
    # Kept by a list: as that, in the last step, too. The last logits are nobody's to keep.
    assert card_ledger.ledger(card_ledger.events)[C.USER_TENSORS] == 4 * 4
    assert card_ledger.ledger(card_ledger.events)[C.ACTIVATIONS] == 256 * 512 * 4


def test_state_and_gradients_have_the_names_of_their_parameters():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())

    def cell():
        model(rows()).sum().backward()
        optimizer.step()

    found = at_end(card_ledger_of(cell, net=model, optimizer=optimizer))
    form = "(1024, 512) float32"
    assert found[f"net.0.weight: exp_avg {form}", C.OPTIMIZER_STATE] == 2 * MIB
    assert found[f"net.0.weight: exp_avg_sq {form}", C.OPTIMIZER_STATE] == 2 * MIB
    assert found[f"net.0.weight.grad {form}", C.GRADIENTS] == 2 * MIB


def test_state_that_lies_in_a_group_or_is_replaced_is_optimizer_state():
    class Muon(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})
            self.param_groups[0]["update"] = torch.empty(MIB, dtype=torch.uint8, device="cuda")

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                self.state[p]["Q"] = [torch.zeros_like(p)]

    model = network()
    optimizer = Muon(model.parameters())

    def cell():
        for _ in range(3):
            model(rows()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    card_ledger = card_ledger_of(cell, model=model, optimizer=optimizer)
    state = (2 * 512 * 1024 + 1536) * 4 + MIB
    assert card_ledger.ledger(card_ledger.events)[C.OPTIMIZER_STATE] == state
    found = at_end(card_ledger)
    assert found["model.2.weight: Q[0] (512, 1024) float32", C.OPTIMIZER_STATE] == 2 * MIB
    assert found["optimizer.param_groups[0]['update'] (1048576,) uint8", C.OPTIMIZER_STATE] == MIB


@reads_graphs
def test_gradients_of_results_are_where_the_engine_puts_them():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(3))).cuda()
    places = {}

    def watched(x):
        for i, (linear, tanh) in enumerate(model):
            made = linear(x)
            made.register_hook(lambda g, i=i: places.update({f"model.{i}.0": g.data_ptr()}))
            x = tanh(made)
        return x

    def cell():
        for _ in range(2):
            watched(rows()).sum().backward()
            model.zero_grad()

    card_ledger = card_ledger_of(cell, model=model)
    last = [s for s in card_ledger.session.spans if s.name == "backward"][-1]
    a = card_ledger.allocations
    born = np.flatnonzero((a.allocated_at >= last.first[0]) & (a.allocated_at < last.last[0]))
    for path, place in places.items():
        names = {card_ledger.name(row) for row in born.tolist() if a.addr[row] == place}
        assert f"gradient of {path} (256, 512) float32" in names
    assert len(places) == 3


def test_a_bare_product_has_its_workspace():
    a, b = rows(512), rows(512)
    card_ledger = card_ledger_of(lambda: a @ b, a=a, b=b)
    assert card_ledger.ledger(card_ledger.events)[C.WORKSPACE] == 8519680
    assert card_ledger.ledger(card_ledger.events)[C.UNKNOWN] == 0


def test_workspaces_that_are_cleared_behind_an_error_are_workspaces():
    def cell():  # as Lightning's trainer ends
        model = network()
        try:
            for _ in range(2):
                model(rows()).sum().backward()
                model.zero_grad()
            raise KeyError(model(rows()).shape)
        finally:
            torch._C._cuda_clearCublasWorkspaces()

    with pytest.raises(KeyError), nbmem.trace("cell") as trace:
        cell()

    card_ledger = CardLedger(trace.session)
    sizes = card_ledger.allocations.requested[card_ledger.category == C.WORKSPACE].tolist()
    assert sizes == [8519680, 8519680]


def test_what_the_user_does_with_the_history_costs_nbmem_nothing(tmp_path):
    model = network()
    memory = torch.cuda.memory

    def cell():
        for step in range(4):
            if step == 1:
                memory._record_memory_history(max_entries=100_000)
            if step == 2:
                memory._dump_snapshot(tmp_path / "snapshot.pickle")
                memory._record_memory_history(enabled=None)
            model(rows()).sum().backward()
            model.zero_grad()

    with nbmem.trace("cell", namespace={"model": model}) as trace:
        cell()
    assert not any("dropped" in note for note in trace.report().notes)
    assert [p.step for p in trace.report().phases if p.name == "backward"] == [0, 1, 2, 3]
    assert (tmp_path / "snapshot.pickle").stat().st_size > 0
    assert not torch._C._cuda_isHistoryEnabled()


def test_looking_into_objects_runs_nothing_of_theirs_and_holds_nothing():
    ran = []

    class Meta(type):
        def __eq__(cls, other):
            ran.append("__eq__ of a class")
            return NotImplemented

        __hash__ = type.__hash__

    class Touchy(metaclass=Meta):
        def __init__(self):
            self.__dict__["x"] = rows(1024)

        def __getattr__(self, name):
            ran.append(name)
            raise RuntimeError(name)

        def __iter__(self):
            ran.append("__iter__")
            return iter(())

        @property
        def step(self):
            ran.append("step")

    class Mapping(dict):
        def items(self):
            ran.append("items")
            return ()

    names = {"touchy": Touchy(), "mapping": Mapping(y=rows(512))}
    found = at_end(card_ledger_of(lambda: rows(1).sum(), **names))
    assert found["touchy.x (1024, 512) float32", C.USER_TENSORS] == 2 * MIB
    assert found["mapping['y'] (512, 512) float32", C.USER_TENSORS] == MIB
    assert not ran
    before = torch.cuda.memory_allocated()
    names.clear()
    gc.collect()
    assert torch.cuda.memory_allocated() == before - 3 * MIB
