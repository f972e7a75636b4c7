"""Names of tensors in many styles of training loops."""

import pytest
import torch

import nbmem
from nbmem.core.session.categories import Category
from nbmem.report.ledger.card_ledger import CardLedger
from tests.capture.named_tensors import (
    C_OF_A_MODEL,
    MIB,
    Parts,
    at_end,
    card_ledger_of,
    in_step,
    live_bytes,
    network,
    reads_graphs,
    rows,
    steps_of,
)

nn, F, C = torch.nn, torch.nn.functional, Category
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]


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


def test_a_list_names_its_layers_and_the_loops_variable_names_none():
    names = {"nn": nn, "x": rows()}
    with nbmem.trace("cell", namespace=names) as trace:
        exec(LAYERS_IN_A_LIST, names)
    kept = live_bytes(ledger := CardLedger(trace.session), ledger.events)
    for i in range(3):
        name = f"layers[{i}].weight"
        assert kept[f"{name} (512, 512) float32", C.WEIGHTS] == MIB
        assert kept[f"{name}.grad (512, 512) float32", C.GRADIENTS] == MIB


LAYERS_IN_A_LIST = """
layers = [nn.Linear(512, 512, device="cuda") for _ in range(3)]
h = x
for layer in layers:
    h = layer(h)
h.sum().backward()
"""


def test_a_parameter_of_no_module_is_a_weight():
    names = {"own": [nn.Parameter(rows())], "leaf": rows().requires_grad_()}

    def cell():
        names["own"][0].mul(names["leaf"]).sum().backward()

    kept = at_end(card_ledger_of(cell, **names))
    assert kept["own[0] (256, 512) float32", C.WEIGHTS] == MIB // 2
    assert kept["leaf (256, 512) float32", C.USER_TENSORS] == MIB // 2
    assert kept["own[0].grad (256, 512) float32", C.GRADIENTS] == MIB // 2
