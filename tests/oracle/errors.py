"""Compare the errors that torch's own tests list for each operator.

`python -m tests.oracle --errors` calls torch's operators, modules and optimizers with what their
databases list as errors (`error_inputs_func`), on the oracle and on the virtual card. Told is the
kind of the error and how it begins.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.oracle.record import error_text
from tests.oracle.samples import known_modules, seeded

RUNS = "runs"
HEAD = (
    "| | asked | raised by the card | the same kind | the same words | refused here alone |\n"
    "| --- | --: | --: | --: | --: | --: |"
)


def mistakes(torch: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each mistake with its name."""
    yield from _of_operators(torch)
    yield from _of_modules()
    yield from _of_optimizers()


def _of_operators(torch: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    from torch.testing._internal.common_methods_invocations import op_db

    def called(function: Any, sample: Any) -> Any:
        made = function(sample.input, *sample.args, **sample.kwargs)
        return list(made) if hasattr(made, "__next__") else made

    for op in op_db:
        if op.error_inputs_func is None:
            continue
        seeded(torch)
        for number, given in enumerate(_listed(op.error_inputs_func, op, "cuda")):
            if isinstance(given, str):
                yield f"{op.formatted_name} {number}", lambda text=given: text
                continue
            yield (
                f"{op.formatted_name} {number}",
                lambda op=op, sample=given.sample_input: called(op.op, sample),
            )


def _of_modules() -> Iterator[tuple[str, Callable[[], Any]]]:
    from torch.testing._internal import common_modules

    def called(known: Any, given: Any) -> Any:
        made, taken = (given.module_error_input.constructor_input, None)
        module = known.module_cls(*made.args, **made.kwargs)
        taken = given.module_error_input.forward_input
        if given.error_on is common_modules.ModuleErrorEnum.FORWARD_ERROR:
            module(*taken.args, **taken.kwargs)

    import torch

    for known in common_modules.module_db:
        if known.module_error_inputs_func is None:
            continue
        options = {"device": "cuda", "dtype": torch.float32, "requires_grad": False}
        listed = known.module_error_inputs_func(known, **options, training=False)
        for number, given in enumerate(listed):
            yield f"{known.name} {number}", lambda k=known, g=given: called(k, g)


def _of_optimizers() -> Iterator[tuple[str, Callable[[], Any]]]:
    import torch
    from torch.testing._internal import common_optimizers

    def called(known: Any, given: Any) -> Any:
        made = given.optimizer_error_input
        optimizer = known.optim_cls(made.params, **made.kwargs)
        if given.error_on is common_optimizers.OptimizerErrorEnum.STEP_ERROR:
            optimizer.step()

    for known in common_optimizers.optim_db:
        listed = known.optim_error_inputs_func("cuda", torch.float32)
        for number, given in enumerate(listed):
            yield f"{known.name} {number}", lambda k=known, g=given: called(k, g)


def _listed(function: Any, *args: Any) -> Iterator[Any]:
    """Read a database's list; return the error where that fails."""
    try:
        yield from function(*args)
    except Exception as err:  # noqa: BLE001 - told by both sides, or by one
        yield f"not made: {error_text(err)}"


def answer(act: Callable[[], Any]) -> str:
    """Run a mistake; return how it ends."""
    try:
        made = act()
    except Exception as err:  # noqa: BLE001 - that is the answer
        return error_text(err)
    return made if isinstance(made, str) else RUNS


def answers(python: str, env: dict[str, str], *, virtual: str | None) -> dict[str, str]:
    """Each mistake's answer, in a process of its own."""
    command = [python, "-m", "tests.oracle.errors", *([virtual] if virtual else [])]
    done = subprocess.run(command, env=env, check=False, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


def counts(real: dict[str, str], card: dict[str, str]) -> Counter[str]:
    """Count the card's errors and those that are raised here, too."""
    found: Counter[str] = Counter(asked=len(real))
    for name, told in real.items():
        here = card.get(name, "")
        if told == RUNS or told.startswith("not made"):
            found["refused here"] += here not in {RUNS, told}
            continue
        found["raised"] += 1
        found["same kind"] += here.partition(":")[0] == told.partition(":")[0]
        found["same words"] += here == told
    return found


def row(label: str, found: Counter[str]) -> str:
    named = ("asked", "raised", "same kind", "same words", "refused here")
    return f"| {' | '.join([label, *(f'{found[name]:,}' for name in named)])} |"


def main() -> None:
    warnings.simplefilter("ignore")
    import torch

    if len(sys.argv) > 1:
        from nbmem import virtual

        virtual.activate(sys.argv[1])
    known_modules()
    for name, act in mistakes(torch):
        print(json.dumps([name, answer(act)]), flush=True)


if __name__ == "__main__":
    main()
