"""Gather facts about the program while it runs, for a session's `facts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbmem.capture.heap.cycles import closing_reference
from nbmem.capture.interpreter.notebook_cells import running_shell
from nbmem.capture.program import program_facts
from nbmem.capture.program.batch_sizes import batch_sizes
from nbmem.capture.program.library_models import pipelines

if TYPE_CHECKING:
    from nbmem.capture.record.tensor_labels import TensorLabelLog

MAX_KINDS = 10_000
"""Kinds of outermost module calls that are counted."""


class ProgramLog:
    """Counts how modules were called, without holding them."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, ...], int] = {}

    def called(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Count an outermost module call that has ended."""
        call = id(module), *program_facts.call_facts(module, args, kwargs)
        if call in self._calls or len(self._calls) < MAX_KINDS:
            self._calls[call] = self._calls.get(call, 0) + 1

    def facts(
        self, tensor_labels: TensorLabelLog, namespace: Mapping[str, Any], *, cycles: bool = False
    ) -> dict[str, Any]:
        """Return the facts known at the end, as JSON.

        `calls` has one entry for each kind of call, in the order of the first: module,
        training, grad, autocast, rows, chained, of_inputs, count. `modules` and
        `optimizers` are those that are still alive, by name. `batches` are the notebook's
        numbers with a batch size's name, and `pipelines` those of diffusers. `notebook` is
        whether IPython ran it. A call of a part of a module counts as a use of the module. A
        module is `typed` if its name can be typed: not where it begins with a class, for want
        of a variable.

        Args:
            tensor_labels: Finds the live modules and optimizers.
            namespace: The notebook's names.
            cycles: Whether to look for the reference by which a module refers to itself.
        """
        modules = tensor_labels.owners.live_modules()
        names = {id(module): name for module, name, _ in modules}
        called = {key for key, *_ in self._calls}
        nameless = {name for module, name, _ in modules if name == type(module).__name__}
        kinds: dict[tuple[Any, ...], dict[str, Any]] = {}
        for (key, *call), count in self._calls.items():
            entry = {"module": names.get(key), **program_facts.CallFacts(*call)._asdict()}
            kinds.setdefault(tuple(entry.values()), {**entry, "count": 0})["count"] += count
        return {
            "calls": list(kinds.values()),
            "modules": [
                {
                    "name": name,
                    **program_facts.module_facts(module, tree),
                    **({"cycle": closing_reference(module)} if cycles else {}),
                    "called": not called.isdisjoint(tree.paths),
                    "typed": name.partition(".")[0] not in nameless,
                }
                for module, name, tree in modules
            ],
            "optimizers": [
                {"name": name, **program_facts.optimizer_facts(optimizer)}
                for optimizer, name in tensor_labels.owners.live_optimizers()
            ],
            "batches": batch_sizes(namespace),
            "pipelines": pipelines(namespace, names),
            "notebook": running_shell() is not None,
            **program_facts.machine_facts(),
        }
