"""Read the gradients of tracked parameters after a backward."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from nbmem.capture.record.tensor_label_rows import Batch, IdentityRows
from nbmem.capture.record.weight_changes import SAMPLED
from nbmem.capture.tensors import tensors
from nbmem.capture.tensors.gradient_refresh import gradient_reader
from nbmem.capture.tensors.tensor_storages import form_of
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import common_path

if TYPE_CHECKING:
    from nbmem.capture.record.parameter_owners import ParameterOwners
    from nbmem.capture.record.time_budget import TimeBudget
    from nbmem.capture.record.tracked_objects import Parameter


MAX_SAMPLED = 256
"""Parameters of an idle model that are checked for a gradient after each backward."""


class GradientLog:
    """Records gradients under their parameters' names.

    Args:
        owners: Knows the parameters.
        rows: Takes what was observed.
        time_budget: Limits how many idle models are asked for gradients.

    Attributes:
        last: The gradients observed last.
    """

    def __init__(
        self, owners: ParameterOwners, rows: IdentityRows, time_budget: TimeBudget
    ) -> None:
        self.last = Batch(-1, (), None)
        self._owners = owners
        self._rows = rows
        self._time_budget = time_budget

    def record(self, sample: int, keys: Iterable[int]) -> list[Any]:
        """Record the gradients of parameters.

        It runs once for each backward, so it must be fast.

        Args:
            sample: The counter sample at the backward's end.
            keys: Ids of the parameters.

        Returns:
            A few of the parameters, which must not be retained.
        """
        found: list[tensors.ObservedStorage] = []
        checked: list[Any] = []
        again = gradient_reader()
        registered = self._owners.parameters
        for key in keys:
            known = registered.get(key)
            parameter = None if known is None else known.ref()
            if known is None or parameter is None:
                continue
            if len(checked) < SAMPLED and tensors.requires_grad(parameter):
                checked.append(parameter)
            last = known.gradient
            seen = again(parameter, last) if again is not None and last is not None else None
            seen = seen or _observe_gradient(known, parameter)
            if seen is not None:
                known.gradient = seen
                found.append(seen)
        if len({seen.addr for seen in found}) < len(found):
            found = _named_after_all(found)
        self.last = self._rows.add(sample, found)
        return checked

    def of_idle_models(
        self, called: Container[int], skipped: Sequence[set[int]], *, few: bool
    ) -> set[int]:
        """Find parameters with gradients in named models that no call has used.

        Args:
            called: Ids of modules that were called.
            skipped: Ids of parameters that other threads use.
            few: Check a few parameters of each model, and all only if one of these has a gradient.
        """
        found: set[int] = set()
        for known, tree in self._owners.trees.values():
            if known.ref() is None or id(known.ref()) in called:
                continue
            with self._time_budget.spend("gradients of idle models") as granted:
                keys = set(tree.places).difference(*skipped) if any(skipped) else tree.places
                checked = islice(keys, 0, None, len(keys) // MAX_SAMPLED + 1)
                if few and not (granted and tree.with_gradient(checked)):
                    continue
                for parameter in tree.all_with_gradient(keys):
                    if self._owners.owner_of(parameter) is not None:
                        found.add(id(parameter))
        return found


def _observe_gradient(known: Parameter, parameter: Any) -> tensors.ObservedStorage | None:
    """Describe a parameter's gradient; return None if it has none."""
    gradient = tensors.gradient_of(parameter)
    if gradient is None:
        return None
    known.form = known.form or form_of(loaded_torch(), gradient)
    name = f"{known.path}.grad {known.form}"
    seen = tensors.observe(gradient, Category.GRADIENTS, name, form=False)
    if seen is None:  # a sparse one, perhaps
        name = f"{known.path}.grad"
        seen = next(tensors.observe_parts(gradient, Category.GRADIENTS, name), None)
    return None if seen is None else seen._replace(of=known.owner)


def _named_after_all(gradients: list[tensors.ObservedStorage]) -> list[tensors.ObservedStorage]:
    """Rename gradients that share a storage after all their parameters.

    Other gradients are returned unchanged.
    """
    paths: dict[tuple[int, int], list[str]] = {}
    for seen in gradients:
        paths.setdefault(seen[:2], []).append(seen.name.rpartition(".grad")[0])
    return [
        seen
        if len(own_paths := paths[seen[:2]]) < 2
        else seen._replace(name=f"{common_path(own_paths)}.*.grad of {len(own_paths)} parameters")
        for seen in gradients
    ]
