"""Records of operators: unique, existing and with a source."""

import itertools

import pytest
import torch

from nbmem.virtual.operator_model.operator import Operator
from nbmem.virtual.operators import table

OPERATORS = table.OPERATORS
NEWER = {"linalg_matrix_sqrth", "linalg_polar"}
"""Of torch 2.14."""
NAMES = list(itertools.chain.from_iterable(operator.names for operator in OPERATORS))


def first_name(operator):
    return operator.names[0]


def overloads(name):
    """Return the overloads of torch's operator of that name."""
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    if found is None:
        return []
    every = found.overloads()
    wanted = every if overload == "*" else [overload or "default"]
    return [getattr(found, one) for one in wanted if one in every]


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the names are those of torch 2.13"
)
@pytest.mark.parametrize("name", sorted({n for n in NAMES if "::" not in n} - NEWER))
def test_an_operator_of_that_name_exists(name):
    assert overloads(name)


def test_no_operator_has_two_records():
    assert sorted(NAMES) == sorted(set(NAMES))


@pytest.mark.parametrize("operator", OPERATORS, ids=first_name)
def test_each_record_is_found_by_its_operators_and_says_something(operator):
    assert operator != Operator(operator.names)
    for name in operator.names:
        for func in overloads(name):
            found = table.record_of(func)
            assert found is operator or (name.endswith(".*") and found.names != ())


@pytest.mark.parametrize("operator", [o for o in OPERATORS if o.memory], ids=first_name)
def test_a_rule_of_memory_says_where_it_is_from(operator):
    assert operator.source


def test_an_operator_without_a_record_is_plain():
    assert table.record_of(torch.ops.aten.sin.default) is table.PLAIN


def test_an_operator_of_another_library_is_found_by_name():
    schema = type("Schema", (), {"name": "torchvision::nms", "overload_name": ""})
    func = type("Func", (), {"_schema": schema})()
    assert table.record_of(func).names == ("torchvision::nms",)
