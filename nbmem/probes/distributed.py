"""What DistributedDataParallel takes beside its model, told by its parameters: it shows none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.core.categories import Category
from nbmem.probes.cuda import loaded_torch
from nbmem.probes.holders.objects import attributes_of
from nbmem.probes.modules import named_parameters
from nbmem.probes.tensors import Seen, address_of, requires_grad

if TYPE_CHECKING:
    from collections.abc import Iterator

_VIEWS = "gradient_as_bucket_view"


def buckets_of(module: Any) -> Iterator[Seen]:
    """The buckets of a module, all of one type together, at the address 0.

    None where the gradients are views of them: a bucket is what a gradient's storage is then.
    """
    if (attributes_of(module) or {}).get(_VIEWS) is not False:
        return
    torch: Any = loaded_torch()
    sizes: dict[tuple[int, int], int] = {}
    for _, parameter in named_parameters(module):
        place = address_of(parameter)
        if place is not None and requires_grad(parameter):
            key = place[0], id(torch.Tensor.dtype.__get__(parameter))
            size = torch.Tensor.numel(parameter) * torch.Tensor.element_size(parameter)
            sizes[key] = sizes.get(key, 0) + size
    for (device, _), size in sizes.items():
        yield Seen(device, 0, size, Category.COMMUNICATION, ": gradients' buckets")
