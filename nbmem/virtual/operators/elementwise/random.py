"""Random operators: permutations, multinomial, normal and Bernoulli draws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operator_model.operator import HALVES, Operator, drop, out, outs, temporary
from nbmem.virtual.operator_model.value_checks import aten_type_name
from nbmem.virtual.operators.reduce import staging
from nbmem.virtual.operators.sorting import cub
from nbmem.virtual.tensors.host.lazy_tensors import HostRule
from nbmem.virtual.tensors.shapes import like

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall


def permutation(launch: Launch) -> Iterator[Step]:
    """Plan `randperm`: numbers are sorted by random keys.

    The keys are so wide that two are rarely equal.

    A tensor of the largest number is made first, to check that the type can hold it.
    """
    yield out()
    count, item = launch.outs[0].size[0], launch.outs[0].dtype.itemsize
    if not count:
        return
    bits = min(64, math.ceil(math.log2(count - (6 * count * count + 1) / (math.log(0.9) * 12))))
    key = 4 if bits <= 32 else 8
    yield temporary("largest", item)
    yield drop("largest")
    yield temporary("range", count * item)
    yield temporary("keys", count * key)
    yield temporary("sorted keys", count * key)
    yield temporary("sort", cub.radix_sort(launch.card, count, key, item, bits))
    yield drop("sort")


def draws(launch: Launch) -> Iterator[Step]:
    """Plan `multinomial`: checks, then ratios to random numbers.

    Without replacement, or for one draw, the largest ratios win.
    """
    tensor, count = launch["self"], launch["num_samples"]
    item = tensor.element_size()
    yield out()
    if launch["replacement"] and count > 1:
        yield from _with_replacement(launch)
        return
    yield from _checks(launch)
    yield temporary("ratios", tensor.numel() * item)
    if count > 1:
        yield temporary("values", launch.outs[0].nbytes // 8 * item)


_CATEGORIES_MOST = 1 << 24


def check_draws(call: OperatorCall) -> None:
    """Refuse arguments that `multinomial` refuses before it draws.

    aten/src/ATen/native/Distributions.cpp: multinomial_out

    Raises:
        RuntimeError: In torch's words.
    """
    source, count, out = call.args[0], call.argument("num_samples"), call.argument("out")
    if out is not None and out.dtype is not torch.int64:
        raise RuntimeError(f"multinomial expects Long tensor out, got: {aten_type_name(out)}")
    if count <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not call.argument("replacement") and count > source.size(-1):
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )
    if source.size(-1) > _CATEGORIES_MOST:
        raise RuntimeError("number of categories cannot exceed 2^24")


def _with_replacement(launch: Launch) -> Iterator[Step]:
    """Plan multinomial's copies: original, normalized and summed rows."""
    tensor = launch["self"]
    nbytes = tensor.numel() * tensor.element_size()
    for name in ("original", "normed", "sums"):
        yield temporary(name, nbytes)
    if tensor.numel() == tensor.size(-1):
        torch_type = tensor.dtype in HALVES
        yield temporary(
            "scan", cub.cumulative(tensor.numel(), tensor.element_size(), torch_type=torch_type)
        )
        yield drop("scan")


def _checks(launch: Launch) -> Iterator[Step]:
    """Plan the checks that all values are probabilities and no row sums to 0.

    Buffers of the checks are live as long as on the oracle.
    """
    tensor = launch["self"]
    item = tensor.element_size()
    comes_first = launch.rules.bounds_at_once
    for end, holds in (("max", "is finite"), ("min", "is positive")):
        yield temporary(end, item)
        yield from staging.staging_steps(tensor, range(tensor.dim()), item, launch.card)
        if not comes_first:
            yield temporary(holds, 1)
    if comes_first:
        yield from (temporary("is finite", 1), temporary("is positive", 1))
    yield temporary("valid", 1)
    yield drop("is positive")
    if not comes_first:
        yield drop("min")
    yield drop("is finite")
    if not comes_first:
        yield drop("max")
    rows = tensor.numel() // max(1, tensor.size(-1))
    yield temporary("sums", rows * item)
    yield from staging.staging_steps(
        tensor, [-1], staging.accumulator_bytes(tensor.dtype), launch.card
    )
    yield temporary("are zero", rows)
    if tensor.dim() > 1:
        yield temporary("any is zero", 1)
        yield drop("are zero")
    yield drop("sums")
    yield temporary("both", 1)
    yield drop("both")


def normal(launch: Launch) -> Iterator[Step]:
    """Plan `normal`: standard deviations on the card are checked twice.

    The check is whether any is negative. Arguments that are numbers become tensors.

    aten/src/ATen/native/DistributionTemplates.h: normal_impl, normal_out_impl
    """
    mean, deviation = launch["mean"], launch["std"]
    if not isinstance(deviation, torch.Tensor):
        yield from outs(launch)
        if isinstance(mean, torch.Tensor):
            yield temporary("deviations", launch.outs[0].nbytes)
        return
    yield from _least(launch, deviation)
    yield from outs(launch)
    yield from _least(launch, deviation)
    if not isinstance(mean, torch.Tensor):
        yield temporary("mean", launch.outs[0].dtype.itemsize)


def _least(launch: Launch, deviation: torch.Tensor) -> Iterator[Step]:
    item = deviation.element_size()
    if deviation.numel():
        yield temporary("least", item)
        yield from staging.staging_steps(deviation, range(deviation.dim()), item, launch.card)
        yield temporary("is positive", 1)
        yield from (drop("is positive"), drop("least"))


def bernoulli(launch: Launch) -> Iterator[Step]:
    """Plan `bernoulli`: half-precision probabilities are copied to float32."""
    yield from outs(launch)
    chances = launch.call.tensors[-1]
    if chances.dtype in HALVES:
        yield temporary("in float32", chances.numel() * 4)


OPERATORS = (
    Operator(
        ("bernoulli", "bernoulli_.Tensor", "bernoulli.Tensor"),
        memory=bernoulli,
        source="aten/src/ATen/native/cuda/DistributionBernoulli.cu: bernoulli_tensor_kernel",
    ),
    Operator(
        ("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor"),
        memory=normal,
        source="aten/src/ATen/native/DistributionTemplates.h: normal_impl, normal_out_impl",
    ),
    Operator(
        ("randperm", "randperm.generator"),
        memory=permutation,
        source="aten/src/ATen/native/cuda/Randperm.cu: randperm_out_cuda",
    ),
    Operator(
        ("multinomial",),
        refuse=check_draws,
        memory=draws,
        source="aten/src/ATen/native/Distributions.cpp: multinomial_out",
    ),
    Operator(("multinomial.out",), refuse=check_draws),
    Operator(("_dirichlet_grad",), shape=like("x")),
    Operator(("_sample_dirichlet", "_standard_gamma_grad"), shape=like("self")),
    Operator(("binomial",), shape=like("count")),
    Operator(("normal_.*", "uniform_.*"), host=HostRule(overwrites=True)),
)
