"""Allocation sites of tensors that no hook observed."""

from types import SimpleNamespace

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.events import NOT_KNOWN
from nbmem.core.session.session import Calls
from nbmem.core.session.tensor_names import as_source
from nbmem.report.ledger.allocation_sites import AllocationSites, step_temporaries
from nbmem.report.ledger.observations import NO_NAME
from tests.ledger.test_repeated_steps import loop

TEXTS = (
    "net", "adam.step()", "critic", "saved by net.0 (8,) float32", "net.1.weight.grad (8,) f",
    "added to net.fast.vars.3.grad (8,) f", "net.fast.vars.3.grad (8,) f",
)  # fmt: skip
PHASES = loop(("input", 0, 10), ("forward", 0, 30), ("backward", 0, 20), ("optimizer", 0, 40))
INPUT, FORWARD, BACKWARD, OPTIMIZER = 0, 10, 40, 60


CALLS = Calls.from_rows([(FORWARD, 20, 0), (NOT_KNOWN, 30, 2), (70, 90, 1)])


def site_names(*born, names=None, category=Category.UNKNOWN, of=CALLS, within=True):
    """Return the text for each allocation site."""
    births = np.array(born, np.int64)
    facts = SimpleNamespace(
        phases=PHASES,
        born_in=PHASES.of(births),
        within_one_phase=np.full(len(births), within),
        allocations=SimpleNamespace(allocated_at=births),
    )
    known = np.array([NO_NAME] * len(born) if names is None else names, np.int64)
    found = AllocationSites(facts, known, TEXTS, np.full(len(born), category, np.uint8), of)
    return [found.name(row) for row in range(len(born))]


def test_an_allocation_in_a_call_or_a_step_belongs_to_it():
    assert site_names(15, 75) == ["temporary of net", "temporary of adam.step()"]
    assert site_names(15, 75, within=False) == ["made by net", "made by adam.step()"]


def test_an_allocation_outside_of_the_calls_belongs_to_none():
    assert site_names(5, 25, 35, 65, 95) == [
        "temporary before net",
        "temporary near critic",  # nobody looked when it began
        "temporary after critic",
        "temporary before adam.step()",
        "temporary after adam.step()",
    ]


def test_a_tensor_named_by_a_graph_gives_its_module_to_adjacent_allocations():
    assert site_names(14, 15, names=[3, NO_NAME])[1] == "temporary near net.0"
    assert site_names(15, 16, names=[NO_NAME, 3])[0] == "temporary near net.0"
    far = site_names(*range(11, 17), names=[3, *[NO_NAME] * 5])
    assert far[4:] == ["temporary near net.0", "temporary of net"]
    beyond = site_names(39, 41, names=[3, NO_NAME])
    assert beyond[1] == "temporary of backward()", "a neighbour in another phase is none"


def test_a_parameters_gradient_is_a_neighbour_in_backward():
    row = site_names(45, 46, names=[4, NO_NAME], category=Category.GRADIENTS)[1]
    assert row == "temporary near net.1"


def test_a_list_of_parameters_is_named_after_the_module_that_calculates_with_it():
    of_sum = site_names(45, 46, names=[5, NO_NAME])[1]
    whole = site_names(45, 46, names=[6, NO_NAME], category=Category.GRADIENTS)[1]
    assert of_sum == whole == "temporary near net.fast"


def test_without_calls_only_adjacent_allocations_count():
    assert site_names(15, 75, of=None) == [None, None]
    assert site_names(99, 140) == ["temporary after adam.step()", None]


def test_a_step_lets_go_of_what_it_made_before_it_returns():
    born = np.array([62, 72, 75, 95])
    allocations = _Rows(allocated_at=born, freed=np.array([80, 89, 95, 99]))
    found = step_temporaries(allocations, PHASES.of(born), PHASES, CALLS, TEXTS)
    assert found.tolist() == [False, True, False, False]


def test_what_pyg_keeps_is_written_as_it_is_typed():
    assert as_source("data._store._mapping['x'] (4, 2) float32") == "data.x (4, 2) float32"
    inner = "graph._node_store_dict['paper']._mapping['y']"
    assert as_source(inner) == "graph['paper'].y"
    assert as_source("mine._mapping['x']") == "mine._mapping['x']"


class _Rows(SimpleNamespace):
    def __len__(self):
        return len(self.allocated_at)
