"""Allocator requests of sparse operators.

1,000 elements in 300 x 200, as `tests.oracle.record` heard it on torch 2.13 for an H100; places
that are sorted away are none there, for the oracle computes no values.
"""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional

from nbmem.core.errors import UsageError
from tests.oracle.record import AllocatorEvents

ROWS, COLUMNS, NNZ = 300, 200, 1000
DENSE = ROWS * COLUMNS * 4
SORTED = [8000, 8000, 8000, 16895, -16895, 1535, -1535]
"""Three buffers of places, the scratch of a sort and that of a comparison."""
PRODUCT = [76800, 76800, 1204, 4000, -4000, 4000, 76800, -76800, -4000, -1204, -76800]
"""Zeros, the result, rows and columns as cuSPARSE wants them, and a result by columns."""


def adjacency(*, coalesced=True, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    flat = torch.randperm(ROWS * COLUMNS, generator=generator)[:NNZ]
    flat = flat.sort().values if coalesced else flat
    indices = torch.stack([flat // COLUMNS, flat % COLUMNS])
    made = torch.sparse_coo_tensor(indices, torch.ones(NNZ, dtype=dtype), (ROWS, COLUMNS))
    return made.coalesce() if coalesced else made


@pytest.fixture
def names(gpu):
    cpu, loose = adjacency(), adjacency(coalesced=False)
    return {
        "torch": torch, "cpu": cpu, "csr": cpu.to_sparse_csr(), "s": cpu.cuda(), "u": loose.cuda(),
        "r": cpu.to_sparse_csr().cuda(), "d": torch.randn(ROWS, COLUMNS, device="cuda"),
        "x": torch.randn(COLUMNS, 64, device="cuda"), "v": torch.randn(COLUMNS, device="cuda"),
    }  # fmt: skip


ASKED = {
    "cpu.cuda()": [16000, 4000],
    "csr.cuda()": [4000, 2408, 8000],
    "s.clone()": [4000, 16000],
    "s.double()": [16000, 8000],
    "s.cpu()": [],
    "s.t()": [4000, 16000, 8000, -8000],
    "s.T": [16, 16000, -16],
    "s * 2": [16000, 4000],
    "-s": [4000, 16000],
    "s.abs()": [4000, 16000],
    "s ** 2": [16000, 4000],
    "s + u": [32000, 8000],
    "s - u": [4000, 32000, 8000, -4000],
    "d + s": [DENSE],
    "d.add_(s)": [],
    "d.add_(u, alpha=-0.1)": [8000, -8000],
    "s * s": [8000, 8000, 16000, 8, -8, 16000, 4000, -16000, -8000, -8000],
    "s * d": [4000, 16000, 4000, -4000],
    "d.sparse_mask(s)": [4, 4000, 16000, 4000, -4000, -4],
    "s.to_dense()": [DENSE],
    "u.to_dense()": [DENSE, 8000, -8000],
    "u.coalesce()": [*SORTED, 4000, 16000, -8000, -8000, -8000],
    "s.sum()": [4],
    "s.sum(1)": [4000, 8000, *SORTED, 286 * 4, -8000, -8000, -8000, -4000],
    "s.norm()": [4],
    "torch.sparse.softmax(s, 1)": [
        *(4000, 16000, 16, 8000, -16, 8000, 8703, -8703, 8000, 1535, -1535, 1023, -1023),
        *(-8000, -8000, -8000),
    ],
    "s @ x": PRODUCT,
    "torch.sparse.mm(s, x)": PRODUCT,
    "torch.spmm(s, x)": PRODUCT,
    "s @ v": [1200, 1200, 1204, 4000, -4000, 4000, 1200, -1200, -4000, -1204, -1200],
    "torch.cat([s, s], 1)": [32000, 8000],
    "s.unsqueeze(0)": [8000, 24000, -8000],
    "s.to_sparse_csr()": [2408],
    "r @ x": [76800, 76800, -76800],
    "r @ v": [1200],
    "r * 2": [4000, 8000, 2408],
    "torch.sparse.sampled_addmm(r, d[:, :64], x.t())": [8, 2408, -8, 8000, 4000],
    "r.half()": [2000, 2408, 8000],
    "r.t()": [],
    "r.to_sparse_coo()": [16000],
    "r.to_dense()": [
        *(DENSE, 8, 8000, -8, 8, 2400, 2400, 2400, 8, 8, 2408, -8, -2400, -8, -2400, -2400, -8),
        *(16000, 8000, -8000, 8000, 8000, 8000, 8000, 8000, -8000, -8000, -8000, -8000, -8000),
        *(-16000, -2408, -8000),
    ],
}  # fmt: skip


@pytest.mark.parametrize("line", ASKED)
def test_a_line_asks_for_what_the_card_is_asked_for(names, line):
    heard = AllocatorEvents(torch)
    made = eval(line, names)
    assert heard.sizes() == ASKED[line]
    before = torch.cuda.memory_allocated()
    del made
    assert torch.cuda.memory_allocated() <= before


def test_the_backward_of_a_product_turns_the_matrix(names):
    x = names["x"].requires_grad_()
    heard = AllocatorEvents(torch)
    torch.sparse.mm(names["s"], x).sum().backward()
    turned = [4000, 16000, 8000, -8000]
    merged = [*SORTED, 4000, 16000, -8000, -8000, -8000]
    product = [804, 4000, -4000, 4000, 51200, 76800, -76800, -51200, -4000, -804, -4000, -16000]
    assert heard.sizes() == [
        *PRODUCT, 4, -76800, 4, *turned, 51200, 51200, *merged, *product, -51200, -4000, -16000,
        -4, -4,
    ]  # fmt: skip
    assert x.grad.size() == (COLUMNS, 64)


def test_a_gradient_of_its_own_is_taken_without_a_copy(names):
    leaf = names["s"].requires_grad_()
    heard = AllocatorEvents(torch)
    leaf.to_dense().sum().backward()
    assert heard.sizes() == [DENSE, 4, -DENSE, 4, 4, 4000, 16000, 4000, -4000, -4, -4, -4]
    assert not leaf.grad.is_coalesced()


def test_a_product_of_two_by_rows_counts_what_it_has(gpu):
    places = torch.arange(3 * ROWS)
    indices = torch.stack([places // 3, places * 7 % ROWS])
    cpu = torch.sparse_coo_tensor(indices, torch.ones(3 * ROWS), (ROWS, ROWS)).to_sparse_csr()
    card, product = cpu.cuda(), cpu @ cpu
    heard = AllocatorEvents(torch)
    made = card @ card
    whole, narrow = (ROWS + 1) * 8, (ROWS + 1) * 4
    factors, elements = [3 * ROWS * 4, narrow] * 2, product._nnz() * 4
    assert heard.sizes() == [
        *(whole, 8, whole, -8, *factors, narrow, -whole, elements, elements),
        *(-size for size in factors), -whole,
    ]  # fmt: skip
    assert made.crow_indices().tolist() == product.crow_indices().tolist()
    assert (made.layout, made.col_indices().dtype) == (torch.sparse_csr, torch.int32)
    assert (made @ card)._nnz() == (product @ cpu)._nnz()


def test_the_counters_balance_when_all_is_freed(gpu):
    made = adjacency().cuda()
    other = made.coalesce()
    shared = made.detach()
    assert torch.cuda.memory_allocated() == 16384 + 4096
    del made, other
    assert torch.cuda.memory_allocated() == 16384 + 4096
    del shared
    assert torch.cuda.memory_allocated() == 0


def test_places_that_are_known_are_merged_as_on_a_card(gpu):
    indices = torch.tensor([[0, 1, 1, 0], [2, 0, 0, 2]], device="cuda")
    made = torch.sparse_coo_tensor(indices, torch.ones(4, device="cuda"), (2, 3))
    with pytest.raises(RuntimeError, match=r"call \.coalesce\(\) first"):
        made.indices()
    merged = made.coalesce()
    assert (made._nnz(), merged._nnz(), merged.is_coalesced()) == (4, 2, True)
    assert merged.indices().tolist() == [[0, 1], [2, 0]]
    assert merged.t().coalesce()._nnz() == 2


def test_unknown_indices_are_taken_to_differ(gpu):
    indices = torch.randint(0, 50, (2, 100_000), device="cuda")
    made = torch.sparse_coo_tensor(indices, indices[0].float(), (50, 50)).coalesce()
    assert made._nnz() == 2500
    assert any("How many different places coalesce finds" in note for note in gpu.notes)


def test_edges_of_a_matrix_that_comes_to_the_card_are_counted(gpu):
    dense = torch.zeros(100, 100)
    dense[torch.arange(40), torch.arange(40)] = 1
    assert dense.cuda().nonzero().size() == (40, 2)
    assert dense.cuda().to_sparse()._nnz() == 40


def test_the_ways_to_make_one(gpu):
    crow, col = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2])
    values = torch.ones(3, device="cuda")
    named = torch.sparse_csr_tensor(
        crow_indices=crow.cuda(), col_indices=col.cuda(), values=values, size=(2, 4)
    )
    listed = torch.sparse_csr_tensor([0, 2, 3], [0, 1, 2], [1.0, 2.0, 3.0], device="cuda")
    of_columns = torch.sparse_csc_tensor(crow.cuda(), col.cuda(), values)
    assert (named.size(), listed.size(), of_columns.size()) == ((2, 4), (2, 3), (3, 2))
    assert (named.layout, of_columns.layout) == (torch.sparse_csr, torch.sparse_csc)
    assert named.crow_indices().tolist() == [0, 2, 3]
    assert of_columns.to_sparse_csr().crow_indices().size() == (4,)
    empty = torch.sparse_coo_tensor((2, 3), device="cuda")
    inferred = torch.sparse_coo_tensor([[0, 1], [2, 0]], [1.0, 2.0], device="cuda")
    typed = torch.sparse_coo_tensor([[0], [0]], [1], (1, 1), dtype=torch.float16, device="cuda")
    assert (empty._nnz(), inferred.size(), typed.dtype) == (0, (2, 3), torch.float16)


def test_what_is_printed_saved_and_copied(names):
    s, r = names["s"], names["r"]
    assert str(s).endswith(
        "device='cuda:0', size=(300, 200), nnz=1000, layout=torch.sparse_coo)"
    ) or "nnz=1000" in str(s)
    assert "layout=torch.sparse_csr" in str(r)
    file = io.BytesIO()
    torch.save({"s": s, "r": r}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["s"].is_cuda
    assert (loaded["s"]._nnz(), loaded["r"]._nnz()) == (NNZ, NNZ)
    assert loaded["r"].layout is torch.sparse_csr
    file.seek(0)
    assert not torch.load(file, map_location="cpu")["s"].is_cuda
    assert copy.deepcopy(s)._nnz() == copy.deepcopy(r)._nnz() == NNZ
    assert s.type() == "torch.cuda.sparse.FloatTensor"
    made = torch.cuda.sparse.FloatTensor(s._indices(), s._values(), s.size())
    assert isinstance(made, torch.cuda.sparse.FloatTensor)


def test_a_buffer_moves_with_its_module(gpu):
    module = nn.Module()
    module.register_buffer("adjacency", adjacency())
    assert module.cuda().adjacency.is_cuda
    assert module.half().adjacency.dtype is torch.float16
    assert module.state_dict()["adjacency"].is_sparse
    assert not module.cpu().adjacency.is_cuda


@pytest.mark.parametrize(
    "line",
    ["s.view(-1)", "torch.ones_like(s)", "s.half() @ x.half()", "r.view(-1)", "s.numpy()"],
)
def test_what_no_card_runs_is_refused(names, line):
    with pytest.raises((NotImplementedError, TypeError)):
        eval(line, names)


def test_what_a_card_runs_and_this_one_cannot_says_so(names):
    with pytest.raises(UsageError, match=r"cannot run aten\.index_select.*Use to_dense\(\) here"):
        names["s"].index_select(0, torch.tensor([1, 2], device="cuda"))


@pytest.mark.parametrize("make", [torch.optim.SparseAdam, torch.optim.Adagrad, torch.optim.SGD])
def test_sparse_gradients_of_embeddings_train(gpu, make):
    table, bag = nn.Embedding(1000, 64, sparse=True), nn.EmbeddingBag(1000, 64, sparse=True)
    model = nn.ModuleList([table, bag]).cuda()
    optimizer = make(model.parameters(), lr=0.1)
    indices = torch.arange(4096, device="cuda").remainder(500).view(256, 16)
    left = []
    for _ in range(3):
        (table(indices).sum() + bag(indices).sum()).backward()
        assert table.weight.grad.is_sparse
        assert table.weight.grad._nnz() == bag.weight.grad._nnz() == 4096
        assert table.weight.grad.coalesce()._nnz() == 500
        optimizer.step()
        optimizer.zero_grad()
        left.append(torch.cuda.memory_allocated())
    assert left[1] == left[2]
    table(indices).sum().backward()
    adam = torch.optim.Adam(table.parameters())
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        adam.step()


def test_a_sparse_softmax_learns(gpu):
    values = torch.randn(NNZ, device="cuda", requires_grad=True)
    cpu = adjacency()
    made = torch.sparse_coo_tensor(cpu.indices().cuda(), values, cpu.size(), is_coalesced=True)
    torch.sparse.softmax(made, 1).values().sum().backward()
    assert values.grad.size() == (NNZ,)
    kept = functional.dropout(made._values(), 0.5)
    assert torch.sparse_coo_tensor(made._indices(), kept, made.size())._nnz() == NNZ
