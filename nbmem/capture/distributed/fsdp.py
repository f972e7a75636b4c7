"""Read the tensors that FSDP holds for collectives at the moment.

They are found in FSDP's own objects and frames.

Each reader receives the object whose method is called and the caller's variables.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_runtime_utils.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nbmem.capture.distributed.parallel_wrappers import FLAT, KEPT, items_of
from nbmem.capture.interpreter.object_members import attributes_of
from nbmem.capture.tensors.modules import is_tensor
from nbmem.capture.tensors.tensors import gradient_of
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import ALL_GATHER, GATHERED, common_path

_FLAT_NAME, _WRAPPED = "_flat_param", "_fsdp_wrapped_module"
_OWN = ("_sharded_param_data", "_sharded_post_forward_param_data")


class CollectiveTensor(NamedTuple):
    """A tensor that is held for a collective now, and how to name it.

    Attributes:
        tensor: The tensor, only for the duration of a call.
        category: Its category.
        of: A sharded parameter to which it belongs, alone or with others of its unit; None if none
            is known.
        path: That parameter's path from FSDP's root; empty if FSDP does not know it yet.
        to: The path from there of its owner: the parameter's own or its unit's.
        what: Its description, a suffix of that name.
    """

    tensor: Any
    category: Category
    of: Any
    path: str
    to: str
    what: str


# --- of FSDP2's parameter groups


def all_gather_buffer(group: Any, _given: Mapping[str, Any]) -> Iterator[CollectiveTensor]:
    """Yield the buffer that all ranks' shards are gathered into."""
    result = items_of(_of(group, "_all_gather_result"))
    return _of_unit(items_of(_of(group, "fsdp_params")), result[:1], ALL_GATHER)


def unsharded_parameters(group: Any, _given: Mapping[str, Any]) -> Iterator[CollectiveTensor]:
    """Yield each unsharded parameter, and the parts of a float8 one."""
    for parameter in items_of(_of(group, "fsdp_params")):
        for name in ("all_gather_outputs", "_unsharded_inner_tensors"):
            yield from _of_one(parameter, items_of(_of(parameter, name)), GATHERED)


def post_forward_shards(group: Any, _given: Mapping[str, Any]) -> Iterator[CollectiveTensor]:
    """Yield the larger shards of parameters after forward.

    They are retained until backward with `reshard_after_forward=8`.
    """
    for parameter in items_of(_of(group, "fsdp_params")):
        kept = [_of(parameter, "_sharded_post_forward_param_data")]
        yield from _of_one(parameter, kept, KEPT)


def waiting_gradients(group: Any, _given: Mapping[str, Any]) -> Iterator[CollectiveTensor]:
    """Yield the buffer still being reduced, and waiting gradients.

    The buffer is the input of a reduce-scatter. The gradients wait for the last micro-batch.
    """
    parameters = items_of(_of(group, "fsdp_params"))
    context = _of(group, "comm_ctx")
    states = items_of(_of(context, "reduce_scatter_states"))[-1:]
    for state in states or [_of(context, "reduce_scatter_state")]:  # before torch 2.13 there is one
        yield from _of_unit(parameters, items_of(state)[:1], "reduce-scatter input")
    for parameter in parameters:
        whole = _of(parameter, "_unsharded_param")
        waiting = [_of(parameter, "unsharded_accumulated_grad")]
        waiting += [gradient_of(whole)] if is_tensor(whole) else []
        yield from _of_one(parameter, waiting, "whole gradient", Category.GRADIENTS)


def collective_inputs(_comm: Any, given: Mapping[str, Any]) -> Iterator[CollectiveTensor]:
    """Yield what will be copied into the buffer that is about to be made."""
    parameters = items_of(given.get("fsdp_params"))
    gradients = items_of(given.get("unsharded_grads"))
    shards = items_of(given.get("param_all_gather_inputs"))
    for parameter, gradient in zip(parameters, gradients, strict=False):
        yield from _of_one(parameter, [gradient], "whole gradient", Category.GRADIENTS)
    for parameter, inputs in zip(parameters, shards, strict=False):
        own = [id(_of(parameter, name)) for name in _OWN]
        cast = [tensor for tensor in items_of(inputs) if id(tensor) not in own]
        yield from _of_one(parameter, cast, f"{ALL_GATHER} input")


def reduce_scatter_buffers(_comm: Any, given: Mapping[str, Any]) -> Iterator[CollectiveTensor]:
    """Yield the input and the output of a reduce-scatter."""
    parameters = items_of(given.get("fsdp_params"))
    yield from _of_unit(parameters, [given.get("reduce_scatter_input")], "reduce-scatter input")
    yield from _of_unit(parameters, [given.get("reduce_output")], "reduce-scatter output")


def _of_one(
    parameter: Any, tensors: Iterable[Any], what: str, category: Category = Category.COMMUNICATION
) -> Iterator[CollectiveTensor]:
    path = _path(parameter)
    for tensor in filter(is_tensor, tensors):
        yield CollectiveTensor(tensor, category, _of(parameter, "sharded_param"), path, path, what)


def _of_unit(
    parameters: list[Any], tensors: Iterable[Any], what: str
) -> Iterator[CollectiveTensor]:
    """Yield tensors that belong to all parameters of an FSDP unit.

    They are named by the common part of the parameters' paths.
    """
    unit = common_path(map(_path, parameters))
    for parameter in parameters[:1]:
        for held in _of_one(parameter, tensors, what):
            yield held._replace(to=unit)


def _path(parameter: Any) -> str:
    path = _of(parameter, "_param_fqn")
    return path if type(path) is str else ""


# --- of FSDP1's flat parameters


def flat_gathered_buffers(handle: Any, _given: Mapping[str, Any]) -> Iterator[CollectiveTensor]:
    """Yield a flat parameter's gathered buffers and its cast shard."""
    attributes = attributes_of(_of(handle, "flat_param")) or {}
    return _of_flat(handle, [attributes.get(name) for name in FLAT], GATHERED)


def flat_reduce_scatter(_nothing: Any, given: Mapping[str, Any]) -> Iterator[CollectiveTensor]:
    """Yield a gradient, its padded copy and its reduce-scatter output."""
    handle = given.get("handle")
    whole = [given.get("unsharded_grad")]
    for held in _of_flat(handle, whole, "whole gradient"):
        yield held._replace(category=Category.GRADIENTS)
    padded, shard = given.get("padded_unsharded_grad"), given.get("new_sharded_grad")
    if padded is not whole[0]:
        yield from _of_flat(handle, [padded], "reduce-scatter input")
    yield from _of_flat(handle, [shard], "reduce-scatter output")


def _of_flat(handle: Any, tensors: Iterable[Any], what: str) -> Iterator[CollectiveTensor]:
    flat = _of(handle, "flat_param")
    attributes = attributes_of(flat) or {}
    originals = [one for one in items_of(attributes.get("_params")) if is_tensor(one)]
    paths = items_of(attributes.get("_fqns")) if originals else [_FLAT_NAME]
    path = f"{_WRAPPED}.{paths[0]}"
    for tensor in filter(is_tensor, tensors):
        of = (originals or [flat])[0]
        yield CollectiveTensor(tensor, Category.COMMUNICATION, of, path, _FLAT_NAME, what)


def _of(obj: Any, name: str) -> Any:
    """Return an attribute of an object of FSDP's; None without it."""
    return (attributes_of(obj) or {}).get(name)
