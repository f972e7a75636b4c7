"""Types and devices that a card's kernels refuse.

What stands here was asked of the oracle (torch 2.13, H100).
"""

import pytest
import torch
from torch import nn
from torch.nn import functional


@pytest.fixture
def names(gpu):
    """Return tensors of each kind; `cpu` is on the CPU."""
    x = torch.zeros(4, 6, device="cuda")
    return {
        "torch": torch, "nn": nn, "F": functional, "x": x, "h": x.half(), "z": torch.complex(x, x),
        "n": torch.arange(24, device="cuda").view(4, 6), "b": x > 0, "v": x[0].clone(),
        "i": torch.tensor([0, 2, 1], device="cuda"), "cpu": torch.zeros(4, 6),
        "image": torch.zeros(2, 3, 8, 8, device="cuda"), "s": torch.ones(4, 6, 1, device="cuda"),
    }  # fmt: skip


REFUSED = {
    "n.mul_(1.5)": "can't be cast to the desired output type Long",
    "x.add_(z)": "can't be cast to the desired output type Float",
    "x.sub(b)": "with a bool tensor is not supported",
    "1 - b": "with a bool tensor is not supported",
    "v.expand(4, 6).add_(1)": "more than one element of the written-to tensor",
    "x & x": "\"bitwise_and_cuda\" not implemented for 'Float'",
    "n.std()": "only support floating point",
    "n.pow(-1)": "Integers to negative integer powers",
    "b.argmax()": "does not support bool",
    "F.softmax(n, 1)": "not implemented for 'Long'",
    "F.gelu(n)": "not implemented for 'Long'",
    "F.silu(n)": "not implemented for 'Long'",
    "F.max_pool2d(image.long(), 2)": '"max_pool2d_with_indices_out_cuda_frame" not implemented',
    "F.binary_cross_entropy(x, n)": "Found dtype Long but expected Float",
    "F.binary_cross_entropy(x, b)": "Found dtype Bool but expected Float",
    "n @ n.T": "\"addmm_cuda\" not implemented for 'Long'",
    "n.uniform_()": "not implemented for 'Long'",
    "n.bernoulli()": "floating|not implemented for 'Long'",
    "x.random_(5, 2)": "expects 'from' to be less than 'to'",
    "z < z": "not implemented for 'ComplexFloat'",
    "x.masked_fill(n, 0)": "masked_fill only supports boolean masks, but got dtype Long",
    "x.index_select(0, x[0])": "Expected dtype int32 or int64|not implemented for 'Float'",
    "x.index_copy(0, i, h[:3])": "expected to have the same dtype",
    "torch.linalg.qr(h)": "\"geqrf_cuda\" not implemented for 'Half'",
    "nn.Softmax(dim=5)(x)": "Dimension out of range",
    "x[:, :0].max()": r"max\(\): Expected reduction dim to be specified",
    "cpu[i]": "indices should be either on cpu or on the same device as the indexed tensor",
    "cpu.record_stream(torch.cuda.Stream())": "aten::record_stream",
    "torch.rand(3, device='cuda', generator=torch.Generator())": "but found 'cpu'",
    "torch.cuda.CUDAGraph().replay()": "without a preceding successful capture",
    "torch.cuda.caching_allocator_delete(12345)": "invalid device pointer: 0x3039",
    "nn.utils.rnn.pack_padded_sequence(s, i.new_tensor([6, 5, 4, 3]), batch_first=True)":
        "should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor",
    "nn.utils.rnn.pack_padded_sequence(s, [3, 4, 5, 6], batch_first=True)": "must be sorted",
    "nn.utils.rnn.pack_padded_sequence(s, [6, 5, 4], batch_first=True)": "equal to batch_size",
    "nn.utils.rnn.pack_padded_sequence(s, [6, 5, 4, 0], batch_first=True)": "greater than 0",
}  # fmt: skip
TAKEN = (
    "n.mul_(2)", "x.add_(n)", "b.add_(b)", "v.expand(4, 6).add(1)", "n & n", "n.float().std()",
    "b.abs()", "n.median()", "n.float().histc()", "x.masked_fill(b.byte(), 0)", "F.relu(n)",
    "F.layer_norm(h, (6,), v.half())", "h.sum()", "n.sum()", "b.sum()", "h.pow(2)", "n.pow(2)",
    "x.index_add(0, i, x[:3])", "cpu[i.cpu()]", "x[i.cpu()]", "F.rrelu(x)", "torch.where(b, x, n)",
    "torch.rand(3, device='cuda', generator=torch.Generator('cuda'))", "h.sort()", "b.sort()",
    "x.lerp(x, 0.5)", "F.dropout(h)", "h.multinomial(2)", "z.sum()", "z.abs()", "n.argmax()",
    "F.avg_pool2d(image.half(), 2)", "F.avg_pool3d(image.half(), 1)", "n.prod()", "n.cumsum(0)",
)  # fmt: skip


@pytest.mark.parametrize("code", REFUSED)
def test_what_a_kernel_refuses_is_refused_every_time(names, code):
    for _ in range(2):
        with pytest.raises((RuntimeError, IndexError), match=REFUSED[code]):
            eval(code, names)


@pytest.mark.parametrize("code", TAKEN)
def test_what_a_kernel_takes_is_taken(names, code):
    assert eval(code, names) is not None


def test_asking_draws_no_numbers_of_the_program(gpu):
    before = torch.get_rng_state()
    torch.zeros(3, device="cuda").uniform_().bernoulli_(0.5)
    torch.ones(3, device="cuda").multinomial(2)
    assert torch.equal(before, torch.get_rng_state())


def test_a_result_has_the_default_type_of_its_moment(gpu):
    made = []
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            found = (
                torch.zeros(7, device="cuda"),
                torch.randn(7, device="cuda"),
                nn.Linear(3, 3).cuda(),
            )
            made.append({found[0].dtype, found[1].dtype, found[2].weight.dtype})
        finally:
            torch.set_default_dtype(torch.float32)
    assert made == [{torch.float32}, {torch.bfloat16}, {torch.float64}, {torch.float32}]


def test_a_message_of_the_engine_is_of_a_card(gpu):
    x = torch.zeros(3, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match="expected device cuda:0 but got cpu"):
        x.exp().backward(torch.ones(3))
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match=r"inplace operation: \[torch.cuda.FloatTensor \[3\]\]"):
        y.sum().backward()


@pytest.mark.parametrize("line", ["x.std()", "x.var(0)", "torch.std_mean(x, 1)", "h.std(1)"])
def test_what_the_cpu_is_asked_warns_of_nothing(names, line, recwarn):
    eval(line, names)
    assert [str(one.message) for one in recwarn if "freedom" in str(one.message)] == []
