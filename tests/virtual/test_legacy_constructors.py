"""Legacy constructors of torch.cuda's tensor types."""

import numpy as np
import pytest
import torch


class Marked(torch.Tensor):
    """A subclass without a constructor of its own."""


@pytest.fixture
def card_type(gpu):
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    yield
    torch.set_default_device(None)
    torch.set_default_tensor_type(torch.FloatTensor)


MADE = {
    "nothing": lambda kind: kind(),
    "a size": lambda kind: kind(2),
    "sizes": lambda kind: kind(2, 3),
    "a size of numpy's": lambda kind: kind(np.int64(2)),
    "torch.Size": lambda kind: kind(torch.Size([2, 3])),
    "a list": lambda kind: kind([1, 2]),
    "a tuple": lambda kind: kind((1, 2)),
    "an array": lambda kind: kind(np.ones(2)),
    "tensors in a list": lambda kind: kind([torch.ones((), device="cuda"), 2]),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_default_type_of_the_card_makes_tensors_there(card_type, make):
    plain = make(torch.Tensor)
    assert plain.device.type == "cuda"
    assert plain.dtype is torch.float32
    assert plain.size() == make(torch.cuda.FloatTensor).size()
    marked = make(Marked)
    assert (type(marked), marked.device.type) == (Marked, "cuda")


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_without_one_they_are_on_the_cpu_whatever_the_default_device_is(gpu, make):
    torch.set_default_device("cuda")
    try:
        plain, marked = make(torch.Tensor), make(Marked)
    finally:
        torch.set_default_device(None)
    assert (plain.device.type, marked.device.type) == ("cpu", "cpu")
    assert type(marked) is Marked


def test_values_and_storages_are_kept(card_type):
    known = torch.Tensor([[1, 2], [3, 4]])
    assert known.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    for same in (torch.Tensor(known), torch.cuda.FloatTensor(known), known.new(known)):
        assert same.data_ptr() == known.data_ptr()
    over = torch.cuda.FloatTensor(known.untyped_storage())
    assert over.data_ptr() == known.data_ptr()


def test_the_default_dtype_is_that_of_the_default_type(card_type):
    torch.set_default_dtype(torch.float64)
    assert torch.Tensor(2).type() == "torch.cuda.DoubleTensor"
    torch.set_default_tensor_type(torch.cuda.HalfTensor)
    assert torch.Tensor([1]).type() == torch.zeros(1).type() == "torch.cuda.HalfTensor"


def test_a_default_device_goes_before_the_default_type_but_for_constructors(card_type):
    torch.set_default_device("cpu")
    assert torch.ones(2).device.type == "cpu"
    assert torch.Tensor(2).device.type == "cuda"
    torch.set_default_device(None)
    assert torch.ones(2).device.type == "cuda"
    torch.set_default_device("cuda")
    torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.ones(2).device.type == "cuda"
    assert torch.Tensor(2).device.type == "cpu"


def test_the_default_type_is_what_torch_tensor_means_as_a_type(card_type):
    assert torch.ones(2, device="cpu").type(torch.Tensor).device.type == "cuda"
    torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.ones(2, device="cuda").type(torch.Tensor).device.type == "cpu"


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda x: torch.cuda.LongTensor(*[x]), TypeError, "expected TensorOptions(dtype=long int"),
        (lambda x: torch.cuda.FloatTensor(x.cpu()), TypeError, "(got TensorOptions(dtype=float"),
        (lambda x: x.new(x.cpu()), TypeError, "device=cuda, layout=Strided"),
        (lambda x: x.new(2, device="cpu"), RuntimeError, "device type: cpu was passed"),
        (lambda _: torch.Tensor(2, device="cuda"), RuntimeError, "device type: cuda was passed"),
        (lambda _: torch.cuda.FloatTensor(1.5), TypeError, "data must be a sequence (got float)"),
    ],
)
def test_what_torch_refuses_is_refused_in_its_words(gpu, make, kind, said):
    with pytest.raises(kind) as caught:
        make(torch.ones(2, device="cuda"))
    assert said in str(caught.value)


def test_constructors_are_torchs_own_once_the_card_is_off():
    from nbmem import virtual

    with virtual.activated("T4"):
        assert type(Marked([1.0])) is Marked
    assert "__new__" not in vars(torch.Tensor)
    assert torch.Tensor([1]).tolist() == Marked([1]).tolist() == [1.0]
