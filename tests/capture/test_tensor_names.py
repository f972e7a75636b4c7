"""Names of tensors in many styles of training loops."""

import copy
import gc
from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the recorder watches torch")

import nbmem
from nbmem import virtual
from nbmem.capture.graphs.saved_tensors import why_unreadable
from nbmem.capture.tensors import modules
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import without_shape
from nbmem.report.ledger.card_ledger import CardLedger

nn, F, C = torch.nn, torch.nn.functional, Category
C_OF_A_MODEL = (C.WEIGHTS, C.GRADIENTS, C.OPTIMIZER_STATE)
MIB = 1 << 20
reads_graphs = pytest.mark.skipif(
    why_unreadable() is not None, reason="this release of torch does not show saved tensors"
)
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def card():
    with virtual.activated("T4") as gpu:
        yield gpu


def network():
    return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()


def rows(rows=256):
    return torch.randn(rows, 512, device="cuda")


def card_ledger_of(cell, **names):
    """Return the ledger of a cell's recording, with notebook names."""
    with nbmem.trace("cell", namespace=names) as trace:
        cell()
    return CardLedger(trace.session)


def live_bytes(card_ledger, position, least=64 * 1024):
    """Return live bytes at a position by (name, category)."""
    sizes = card_ledger.allocations.requested
    found = {}
    for row in card_ledger.live(position).tolist():
        if sizes[row] >= least:
            key = card_ledger.name(row), C(int(card_ledger.category[row]))
            found[key] = found.get(key, 0) + int(sizes[row])
    return found


def at_end(card_ledger, least=64 * 1024):
    return live_bytes(card_ledger, card_ledger.events, least)


def in_step(card_ledger, phase, step):
    """Return live bytes at a phase's end by name and category."""
    spans = card_ledger.session.spans
    last = next(s.last[0] for s in spans if (s.kind, s.name, s.step) == ("phase", phase, step))
    return live_bytes(card_ledger, last)


class OwnAdam:
    """A user-written optimizer that makes new tensors at each step."""

    def __init__(self, params):
        self.params = list(params)
        self.moments = {}

    def step(self):
        with torch.no_grad():
            for i, p in enumerate(self.params):
                old = self.moments.get(i, torch.zeros_like(p))
                self.moments[i] = 0.9 * old + p.grad
                p.sub_(0.1 * self.moments[i])

    def zero_grad(self):
        for p in self.params:
            p.grad = None


@dataclass
class Batch:
    x: torch.Tensor
    target: torch.Tensor


class Buffer:
    __slots__ = ("store",)

    def __init__(self):
        self.store = rows(2048)


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


def test_a_gradient_is_its_modules_though_a_list_has_the_parameter():
    def cell():
        model = nn.Linear(512, 1024, bias=False, device="cuda")
        params = list(model.parameters())
        for _ in range(3):
            loss = model(rows()).square().mean()  # the gradient of the pass before still lives
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                params[0].sub_(0.1 * params[0].grad)

    kept = in_step(card_ledger_of(cell), "backward", 1)
    assert kept["model.weight.grad (1024, 512) float32", C.GRADIENTS] == 2 * MIB


def test_what_torch_func_wraps_is_looked_at_inside():
    model = network()

    def cell():
        x, weights = rows(), {n: p.detach() for n, p in model.named_parameters()}

        def loss(weights, x):
            return torch.func.functional_call(model, weights, (x,)).square().mean()

        for _ in range(2):
            found = torch.func.grad(loss)(weights, x)
            weights = {name: w - 0.1 * found[name] for name, w in weights.items()}
        del found
        return x, weights

    kept = {}
    card_ledger = card_ledger_of(lambda: kept.update(cell=cell()), model=model, kept=kept)

    updated = ("model.2.weight (512, 1024) float32", C.WEIGHTS)
    assert at_end(card_ledger)[updated] == 2 * 2 * MIB, (
        "the module's own, and those that it was lent"
    )
    assert at_end(card_ledger)["kept['cell'][0] (256, 512) float32", C.INPUTS] == MIB // 2


def test_weights_that_are_swapped_in_turn_are_weights_while_others_live():
    model = network()

    def cell():
        lent = [{n: p.detach().clone() for n, p in model.named_parameters()} for _ in range(3)]
        for weights in lent:
            torch.func.functional_call(model, weights, (rows(),))
        return lent

    kept = {}
    card_ledger = card_ledger_of(lambda: kept.update(cell=cell()), model=model, kept=kept)
    assert at_end(card_ledger)["model.2.weight (512, 1024) float32", C.WEIGHTS] == 4 * 2 * MIB


def test_gradients_that_the_loop_assigns_are_gradients():
    model = network()
    optimizer = torch.optim.SGD(model.parameters())

    def cell():
        for _ in range(3):
            found = torch.autograd.grad(model(rows()).sum(), list(model.parameters()))
            for p, g in zip(model.parameters(), found, strict=True):
                p.grad = g * 0.5
            del found, g
            optimizer.step()
            optimizer.zero_grad()

    card_ledger = card_ledger_of(cell, model=model, optimizer=optimizer)

    sizes = card_ledger.allocations.requested
    born = card_ledger.phases.named(card_ledger.born_in, "optimizer")
    halved = born & (sizes == 2 * MIB)
    assert halved.sum() == 3 * 2
    assert {C(int(c)) for c in card_ledger.category[halved]} == {C.GRADIENTS}


def test_the_noise_that_is_made_between_two_calls_is_an_input():
    first, second = network(), network()

    def cell():
        for _ in range(2):
            real = first(rows())
            noise = rows(128)
            fake = second(noise)
            (real.sum() + first(fake.detach()).sum()).backward()

    card_ledger = card_ledger_of(cell, first=first, second=second)

    sizes = card_ledger.allocations.requested
    in_forward = card_ledger.phases.named(card_ledger.born_in, "forward") & (sizes == MIB // 4)
    inputs = in_forward & (card_ledger.category == C.INPUTS)
    assert inputs.sum() == 2, "the noise of each pass"
    assert in_forward.sum() > 2, "and what comes out of the other network, detached, is none"


def test_an_input_has_the_name_that_the_program_gives_it():
    model, images = network(), rows()

    def cell():
        for _ in range(2):
            model(images).sum().backward()

    found = at_end(card_ledger_of(cell, model=model, images=images))

    assert found["images (256, 512) float32", C.INPUTS] == MIB // 2


def test_a_tensor_that_grows_is_one_variable_in_every_pass():
    model = network().requires_grad_(requires_grad=False)

    def cell():
        seen = torch.empty(0, 512, device="cuda")
        for _ in range(6):
            seen = torch.cat([seen, model(rows())])
        return seen

    card_ledger = card_ledger_of(lambda: kept.update(seen=cell()), model=model, kept=(kept := {}))

    joined = card_ledger.allocations.requested % (MIB // 2) == 0
    in_loop = (
        joined
        & (card_ledger.allocations.allocated_at > 0)
        & (card_ledger.category == C.USER_TENSORS)
    )
    sizes = sorted((card_ledger.allocations.requested[in_loop] // (MIB // 2)).tolist())
    assert sizes == [1, 2, 3, 4, 5, 6]
    names = {card_ledger.name(row).partition(" (")[0] for row in in_loop.nonzero()[0].tolist()}
    assert names == {"kept['seen']", "local seen of cell()"}


def test_what_is_replaced_by_something_larger_now_and_then_is_not_one_variable():
    def cell():
        for size in (1, 2, 4, 8):
            x = rows(64 * size)
            del x
        return rows(64 * 16)

    card_ledger = card_ledger_of(lambda: kept.update(last=cell()), kept=(kept := {}))

    assert (card_ledger.category == C.USER_TENSORS).sum() == 1


class Parts(nn.Module):
    """A module whose parts are called by themselves, too."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(512, 512), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(512, 1024), nn.ReLU())

    def forward(self, x):
        return self.decoder(self.encoder(x))


def steps_of(run, model, passes=2):
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for _ in range(passes):
        optimizer.zero_grad()
        run(model, rows()).sum().backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("first", ["whole", "parts"])
def test_a_part_that_is_called_by_itself_is_named_within_the_whole(first):
    whole, parts = (lambda m, x: m(x)), (lambda m, x: m.decoder(m.encoder(x)))
    order = (whole, parts) if first == "whole" else (parts, whole)

    def cell():
        kept["model"] = Parts().cuda()
        kept["optimizers"] = [steps_of(run, kept["model"]) for run in order]

    card_ledger = card_ledger_of(cell, kept=(kept := {}))

    names = {
        name for (name, category), _ in at_end(card_ledger).items() if category in C_OF_A_MODEL
    }
    assert {name.partition(".")[0] for name in names} == {"kept['model']"}
    assert "kept['model'].decoder.0.weight (1024, 512) float32" in names
    assert "kept['model'].decoder.0.weight.grad (1024, 512) float32" in names


def test_a_part_has_the_name_that_the_notebook_gives_the_whole():
    model = Parts().cuda()

    card_ledger = card_ledger_of(
        lambda: steps_of(lambda m, x: m.decoder(m.encoder(x)), model), model=model
    )

    names = {
        name for (name, category), _ in at_end(card_ledger).items() if category in C_OF_A_MODEL
    }
    assert {name.partition(".")[0] for name in names} == {"model"}
    assert "model.encoder.0.weight.grad (512, 512) float32" in names


def test_of_two_names_for_one_model_the_first_is_its_own():
    model = network()

    card_ledger = card_ledger_of(
        lambda: steps_of(lambda m, x: m(x), model), model=model, best=model
    )

    names = {
        name for (name, category), _ in at_end(card_ledger).items() if category in C_OF_A_MODEL
    }
    assert {name.partition(".")[0] for name in names} == {"model"}


def test_what_a_loop_calls_a_tensor_goes_before_what_it_calls_a_part_of_it():
    def cell():
        whole = rows(512)
        parts = [whole[:256], whole[256:]]
        for part in parts:
            model(part).sum().backward()

    model = network()
    card_ledger = card_ledger_of(cell, model=model)

    names = {name for row in range(len(card_ledger.category)) if (name := card_ledger.name(row))}
    assert any(name.startswith("local whole of cell() (512, 512)") for name in names)
    assert not any("parts[" in name for name in names)


def test_what_the_first_batch_is_made_of_is_no_more_unknown_than_that_of_the_second():
    def cell():
        for _ in range(2):
            raw = torch.randint(0, 255, (256, 512), device="cuda").float()
            pieces = [raw / 255, raw / 127]
            batch = (pieces[0] + pieces[1]) / 2
            del raw, pieces
            model(batch).sum().backward()

    model = network()
    card_ledger = card_ledger_of(cell, model=model)

    assert all(int(one) != C.UNKNOWN for one in card_ledger.category)


@reads_graphs
def test_a_gradient_as_large_as_a_workspace_is_told_from_it():
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(3)),
    ).cuda()

    def cell():
        model(rows(4160)).sum().backward()  # 8.125 MiB, as a workspace of cuBLAS's

    card_ledger = card_ledger_of(cell, model=model)

    found = [
        live_bytes(card_ledger, position, 8 << 20) for position in range(card_ledger.events + 1)
    ]
    names = {name for live in found for name, category in live if category is C.OUTPUT_GRADIENTS}
    assert {"gradient of model.2.0 (4160, 512) float32"} <= names
    assert all("backward of" not in name for name in names)
    assert found[-1]["cuBLAS workspace", C.WORKSPACE] == 2 * 8519680


class Policy(nn.Module):
    """A module whose methods call its layers."""

    def __init__(self):
        super().__init__()
        self.actor = nn.Linear(512, 512)

    def act(self, state):
        return self.actor(state)


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


LIBRARY = """
class Trainer:
    def __init__(self, most):
        self.most, self._loop = most, [object() for _ in range(MANY)]

    def fit(self, pl_module, batch, depth=20):
        if depth:
            self._kept = pl_module
            self.fit(pl_module, batch, depth - 1)
            return
        trainer, optimizer = self, torch.optim.SGD(self._kept.parameters(), 0.1)
        del pl_module
        for _ in range(self.most):
            self._kept(batch).sum().backward()
            optimizer.step()
"""


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


class Spectral(nn.Module):
    """A module that replaces two buffers at each call."""

    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.randn(1 << 18), requires_grad=False)
        self.weight = nn.Parameter(torch.randn(512, 512))
        self.register_buffer("v", torch.randn(1 << 18))

    def forward(self, x):
        self.u.data = self.u.data / self.u.data.norm()
        self.v = self.v + self.u
        return x @ self.weight


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
