"""Placeholder values differ by element and are consistent."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from nbmem import virtual
from nbmem.virtual.operators.elementwise.value_signs import SIGN_RULES
from nbmem.virtual.patches import activation

LARGE = (1 << 10, 1 << 10)


def scores():
    return nn.Linear(16, 16).cuda()(torch.randn(64, 16, device="cuda")).detach()


def test_rows_and_columns_differ(gpu):
    for made in (torch.randn(64, 16, device="cuda"), torch.rand(64, 16, device="cuda"), scores()):
        rows = made.cpu()
        assert torch.pdist(rows).min() > 0.1
        assert torch.pdist(rows.T).min() > 0.1
        assert torch.linalg.matrix_rank(rows) == 16
        assert len(set(rows.flatten().tolist())) > 1000


def test_random_and_linear_results_are_normal(gpu):
    for made in (torch.randn(64, 64, device="cuda"), torch.empty(64, 64, device="cuda").normal_()):
        values = made.cpu()
        assert abs(values.mean()) < 0.1
        assert 0.9 < values.std() < 1.1
        assert values.abs().max() < 6


SIGNED = {
    "a layer": lambda x: F.linear(x, x),
    "a convolution": lambda x: F.conv1d(x.T[None], x[:8, :, None]),
    "an embedding": lambda x: F.embedding(torch.arange(9, device="cuda"), x),
    "a norm": lambda x: F.layer_norm(x, (16,)),
    "pointwise": lambda x: F.gelu(x * 2 + 1),
    "a residual": lambda x: F.softmax(x, -1) + x,
    "a difference": lambda x: x.sigmoid() - x.softmax(-1),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "a mean of rows": lambda x: x.mean(0),
    "rows together": lambda x: torch.cat([x, x.exp()]),
    "halves": lambda x: x.half(),
    "written in place": lambda x: x.sigmoid().copy_(x).mul_(2).add_(1),
    "uniform weights": lambda x: nn.init.kaiming_uniform_(x.exp()),
    "what came from the CPU": lambda x: torch.linspace(-1, 1, x.numel()).cuda(),
}
POSITIVE = {
    "exp": torch.exp,
    "softmax": lambda x: F.softmax(x, -1),
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "relu": F.relu,
    "pow": lambda x: x**2,
    "square": lambda x: x * x,
    "var": lambda x: x.var(0),
    "norm": lambda x: x.norm(dim=1),
    "rand": torch.rand_like,
    "losses": lambda x: F.cross_entropy(x, x.argmax(-1), reduction="none"),
    "distances": lambda x: torch.cdist(x, x),
    "in place": lambda x: x.clone().relu_(),
    "a copy": lambda x: x.exp().t().contiguous().double(),
    "what came from the CPU": lambda x: torch.linspace(0.1, 1, x.numel()).cuda(),
}


@pytest.mark.parametrize("make", SIGNED.values(), ids=SIGNED)
def test_some_are_negative_where_an_operator_can_return_such(gpu, make):
    values = make(scores()).cpu()
    assert values.min() < 0 < values.max()
    assert values.isfinite().all()


@pytest.mark.parametrize("make", POSITIVE.values(), ids=POSITIVE)
def test_none_is_negative_or_tiny_where_the_operator_returns_none(gpu, make):
    values = make(scores()).cpu()
    assert values.min() >= 1 / 16
    assert values.max() <= 1
    assert len(values.unique()) > values.numel() / 2


def test_parts_agree_with_the_whole(gpu):
    for made in (
        torch.randn(6, 8, 4, device="cuda"),
        torch.randn(6, 8, device="cuda") @ torch.rand(8, 8, device="cuda"),
    ):
        whole = made.cpu()
        assert torch.equal(made[2].cpu(), whole[2])
        assert torch.equal(made[:, 3:5].cpu(), whole[:, 3:5])
        assert torch.equal(made.transpose(0, 1).cpu(), whole.transpose(0, 1))
        assert torch.equal(made[1:3].clone().cpu(), whole[1:3])
        assert made.flatten()[7].item() == whole.flatten()[7].item()
        assert made.tolist() == whole.tolist() == made.cpu().tolist()
        assert torch.equal(made.half().cpu(), whole.half())


def test_a_storage_of_one_number_holds_one(gpu):
    loss = F.mse_loss(scores(), scores())
    assert loss.item() == loss.cpu().item() == 1.0
    assert loss.detach().item() == loss.log().item() == 1.0


def test_zeros_are_zeros_however_many(gpu):
    assert not torch.zeros(200, 200, device="cuda").cpu().any()
    assert not torch.zeros(LARGE, device="cuda").cpu().any()


def test_a_seed_gives_the_same_numbers_again(gpu):
    def three():
        generator = torch.Generator("cuda").manual_seed(5)
        return [
            torch.randn(9, device="cuda").cpu(),
            torch.randn(9, device="cuda").cpu(),
            torch.rand(9, device="cuda", generator=generator).cpu(),
        ]

    torch.manual_seed(1)
    first = three()
    torch.manual_seed(1)
    again = three()
    torch.manual_seed(2)
    other = three()
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(first[2], other[2])


def test_numbers_of_the_cpu_are_drawn_as_without_a_card(gpu):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    scores().cpu()
    torch.randn(4, 4, device="cuda").tolist()
    weights = nn.Linear(16, 16)
    torch.manual_seed(1)
    nn.Linear(16, 16)
    torch.randn(9, device="cuda").cpu()
    del weights
    torch.manual_seed(1)
    torch.randn(9, device="cuda").cpu()
    assert torch.equal(torch.rand(3), expected)


def test_a_checkpoint_is_what_it_was_saved_as(gpu):
    model, other = (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).cuda() for _ in range(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    saved = {name: value.cpu() for name, value in model.state_dict().items()}
    other.load_state_dict(saved)
    for name, value in other.state_dict().items():
        assert torch.equal(value.cpu(), saved[name])
    assert saved["0.weight"].min() < 0
    assert optimizer.state[model[0].weight]["exp_avg_sq"].cpu().min() > 0


@pytest.mark.parametrize("defer", [True, False])
def test_a_large_copy_is_written_once_somebody_reads_it(defer):
    with virtual.activated("T4", defer=defer):
        made = torch.randn(LARGE, device="cuda")
        host = activation.activation().mode.host
        copy = made.cpu()
        assert (host.kept_of(copy) is not None) is defer
        back = copy.cuda()
        if defer:
            assert host.kept_of(copy) is not None
            assert torch.equal(copy[5], made[5].cpu())
            assert torch.equal(copy[:, :3], made[:, :3].cpu())
            assert back[0].cpu().min() < 0


def test_each_listed_operator_is_one_of_torch(gpu):
    aten = torch.ops.aten
    plain = {name.removesuffix("_") for name in SIGN_RULES}
    assert not {name for name in plain if not (hasattr(aten, name) or hasattr(aten, f"{name}_"))}
