"""Operators of other libraries: Python code or fake implementation."""

import pytest
import torch

from nbmem.core.errors import UsageError

KiB = 1024


@pytest.fixture
def library():
    made = torch.library.Library("nbmem_host_code", "FRAGMENT")
    yield made
    made._destroy()


def define(library, name, kernel, *, fake=None, key="CUDA"):
    library.define(f"{name}(Tensor x) -> Tensor")
    if kernel is not None:
        library.impl(name, kernel, key)
    if fake is not None:
        torch.library.register_fake(f"nbmem_host_code::{name}", fake, lib=library)
    return getattr(torch.ops.nbmem_host_code, name)


def with_scratch(x):
    scratch = torch.empty(64 * KiB, dtype=torch.uint8, device=x.device)
    result = torch.empty_like(x)
    del scratch
    return result


@pytest.mark.parametrize("key", ["CUDA", "CompositeExplicitAutograd"])
def test_scratch_is_seen_although_the_fake_implementation_has_none(gpu, library, key):
    run = define(library, f"scratch_{key.lower()}", with_scratch, fake=torch.empty_like, key=key)
    x = torch.ones(KiB, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = run(x)
    assert torch.cuda.memory_allocated() - before == 4 * KiB
    assert torch.cuda.max_memory_allocated() - before == 68 * KiB
    assert kept.device.type == "cuda"


def test_without_a_fake_implementation_it_runs(gpu, library):
    run = define(library, "alone", lambda x: x[x > 0] * 2)
    assert run(torch.randn(8, device="cuda")).size() == (8,)  # all, as a bound


def test_what_cannot_run_is_answered_by_the_fake_implementation(gpu, library):
    def compiled(x):
        raise AttributeError("no driver")

    run = define(library, "compiled", compiled, fake=lambda x: x.new_empty(3))
    assert run(torch.ones(4, device="cuda")).size() == (3,)
    (note,) = [note for note in gpu.notes if "compiled" in note]
    assert note == (
        "The host code of nbmem_host_code::compiled cannot run on a virtual GPU (AttributeError: "
        "no driver): its fake implementation says the results, and scratch memory that it takes is "
        "not counted."
    )


def test_what_cannot_run_and_has_none_says_so_itself(gpu, library):
    def compiled(x):
        raise AttributeError("no driver")

    run = define(library, "compiled_alone", compiled)
    with pytest.raises(AttributeError, match="no driver"):
        run(torch.ones(4, device="cuda"))


def test_what_host_code_refuses_is_refused(gpu, library):
    def refuse(x):
        raise ValueError("lars has no 8-bit kernel")

    def fail(x):
        return x.size().index(7)

    run = define(library, "refusing", refuse, fake=torch.empty_like)
    with pytest.raises(ValueError, match="lars has no 8-bit kernel"):
        run(torch.ones(4, device="cuda"))
    run = define(library, "failing", fail, fake=torch.empty_like)
    assert run(torch.ones(4, device="cuda")).size() == (4,)


def test_an_operator_without_any_kernel_gets_one_sentence(gpu, library):
    with pytest.raises(
        UsageError, match=r"cannot run nbmem_host_code\.nothing\.default: torch has no"
    ):
        define(library, "nothing", None)(torch.ones(4, device="cuda"))


def test_a_full_card_is_told_as_such(gpu, library):
    run = define(
        library,
        "huge",
        lambda x: torch.empty(1 << 40, device=x.device),
        fake=torch.empty_like,
    )
    with pytest.raises(torch.OutOfMemoryError):
        run(torch.ones(4, device="cuda"))


def test_an_operator_of_ones_own_trains(gpu):
    @torch.library.custom_op("nbmem_host_code::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return with_scratch(x)

    double.register_autograd(lambda context, grad: grad * 2)
    x = torch.ones(KiB, device="cuda", requires_grad=True)
    double(x).sum().backward()
    assert x.grad.size() == x.size()
