"""Allocation sites of unobserved tensors, and owners of parameters."""

import pytest
import torch

import nbmem
from nbmem.core.files.session import open_session, save_session
from nbmem.core.session.categories import Category
from nbmem.report.ledger.card_ledger import CardLedger

nn, F = torch.nn, torch.nn.functional
MIB = 1 << 20
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]


def card_ledger_of(cell, names):
    with nbmem.trace("cell", namespace=names) as trace:
        cell()
    return CardLedger(trace.session)


def of_category(card_ledger, category, least=MIB):
    """Return the names of everything that had a category."""
    sizes = card_ledger.allocations.requested
    rows = range(len(card_ledger.allocations))
    mine = [row for row in rows if sizes[row] >= least and card_ledger.category[row] == category]
    return {card_ledger.name(row) for row in mine}


def test_temporaries_say_which_call_made_them(tmp_path):
    net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
    adamw = torch.optim.AdamW(net.parameters())

    def cell():
        for _ in range(2):
            net(torch.randn(256, 512, device="cuda")).sum().backward()
            adamw.step()
            adamw.zero_grad()
        with torch.no_grad():
            net(torch.randn(1024, 512, device="cuda"))

    card_ledger = card_ledger_of(cell, {"net": net, "adamw": adamw})
    found = of_category(card_ledger, Category.TEMPORARIES)
    assert {"temporary of adamw.step()", "temporary of net"} <= found
    assert None not in found
    save_session(card_ledger.session, tmp_path / "cell.nbmem")
    again = CardLedger(open_session(tmp_path / "cell.nbmem"))
    assert of_category(again, Category.TEMPORARIES) == of_category(
        card_ledger, Category.TEMPORARIES
    )


def test_a_picture_that_is_optimized_has_its_variables_name_and_its_model_none_of_it():
    style = nn.Conv2d(3, 8, 3, padding=1).cuda().requires_grad_(requires_grad=False)
    names = {"style": style}

    def cell():
        content = names["content"] = torch.rand(1, 3, 512, 512, device="cuda")
        style(content)
        img = names["img"] = content.clone().requires_grad_(requires_grad=True)
        lbfgs = names["lbfgs"] = torch.optim.LBFGS([img], max_iter=3)

        def closure():
            lbfgs.zero_grad()
            loss = style(img).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            lbfgs.step(closure)

    card_ledger = card_ledger_of(cell, names)
    form = "(1, 3, 512, 512) float32"
    assert of_category(card_ledger, Category.WEIGHTS) == {f"img {form}"}
    assert of_category(card_ledger, Category.INPUTS) == {f"content {form}"}
    assert f"img.grad {form}" in of_category(card_ledger, Category.GRADIENTS)
    assert "img: d (786432,) float32" in of_category(card_ledger, Category.OPTIMIZER_STATE)
    assert not of_category(card_ledger, Category.UNKNOWN), "what a step's own lists hold is its own"


def test_a_method_that_is_called_to_play_and_to_learn_is_looked_at_in_both():
    net = nn.Linear(4096, 8).cuda()

    def act(x):
        return net(x / 255)

    def cell():
        for _ in range(5):
            with torch.no_grad():
                act(torch.rand(64, 4096, device="cuda"))
        memory = torch.rand(1024, 4096, device="cuda")
        for _ in range(2):
            act(memory[torch.arange(512, device="cuda")]).sum().backward()
            net.zero_grad()

    card_ledger = card_ledger_of(cell, {"net": net})
    assert "local x of act() (512, 4096) float32" in of_category(card_ledger, Category.USER_TENSORS)
    assert not of_category(card_ledger, Category.UNKNOWN)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(1024, 1024), nn.Linear(1024, 1024)

    def forward(self, x):
        return self.last(self.first(x).relu())


def test_nets_of_one_class_have_the_names_of_the_function_that_runs():
    def main():
        student, teacher = Net().cuda(), Net().cuda()
        sgd = torch.optim.SGD(student.parameters(), momentum=0.9)
        for _ in range(2):
            x = torch.randn(256, 1024, device="cuda")
            with torch.no_grad():
                wanted = teacher(x)
            F.mse_loss(student(x), wanted).backward()
            sgd.step()

    with nbmem.trace("cell", namespace={}) as trace:
        main()
    card_ledger, form = CardLedger(trace.session), "(1024, 1024) float32"
    paths = ("student.first.weight", "student.last.weight")
    others = ("teacher.first.weight", "teacher.last.weight")
    assert of_category(card_ledger, Category.WEIGHTS) == {
        f"{path} {form}" for path in paths + others
    }
    state = {f"{path}: momentum_buffer {form}" for path in paths}
    assert of_category(card_ledger, Category.OPTIMIZER_STATE) == state
    assert all(fact["name"] == "Net" for fact in trace.session.facts["modules"]), "none to type"


def test_a_loops_variable_is_no_layers_name():
    layers = [nn.Linear(1024, 1024, bias=False).cuda() for _ in range(2)]

    def main(layers):
        x = torch.randn(256, 1024, device="cuda")
        for layer in layers:
            x = layer(x)
        x.sum().backward()

    with nbmem.trace("cell", namespace={}) as trace:
        main(layers)
    names = of_category(CardLedger(trace.session), Category.WEIGHTS)
    assert not [name for name in names if name.startswith("layer.")]


def test_a_learners_own_optimizer_keeps_state_by_its_parameters():
    class Own:
        """Keeps state by parameters, as fastai's does."""

        def __init__(self, parameters):
            self.parameters, self.state = list(parameters), {}

        @torch.no_grad()
        def step(self):
            for p in self.parameters:
                state = self.state.setdefault(p, {"average": torch.zeros_like(p)})
                state["average"].mul_(0.9).add_(p.grad)
                p.sub_(0.1 * state["average"])

    class Learner:
        def __init__(self):
            self.model = nn.Linear(1024, 1024, bias=False).cuda()
            self.opt = Own(self.model.parameters())

        def fit(self):
            for _ in range(3):
                self.model.zero_grad()
                self.model(torch.randn(256, 1024, device="cuda")).sum().backward()
                self.opt.step()

    learn = Learner()
    card_ledger = card_ledger_of(learn.fit, {"learn": learn})
    form = "(1024, 1024) float32"
    assert of_category(card_ledger, Category.WEIGHTS) == {f"learn.model.weight {form}"}
    assert of_category(card_ledger, Category.OPTIMIZER_STATE) == {
        f"learn.model.weight: average {form}"
    }
    assert None not in of_category(card_ledger, Category.TEMPORARIES)
