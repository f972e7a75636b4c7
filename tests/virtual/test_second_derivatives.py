"""Order of autograd nodes that another pass has made."""

import pytest
import torch

FORWARD_FIRST = [
    "AddBackward0", "SumBackward0", "CosBackward0", "SumBackward0", "ExpBackward0", "SinBackward0",
    "MulBackward0", "MulBackward0", "CosBackward0", "MulBackward0",
]  # fmt: skip
"""As the CUDA build of torch 2.13 runs them (tests/oracle)."""


def nodes_of(loss):
    found, waiting = {}, [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found[node] = node.name()
            waiting += [behind for behind, _ in node.next_functions]
    return found


def order_of(loss):
    """Return the order of the nodes, without leaves and copies."""
    ran = []
    for node, name in nodes_of(loss).items():
        if name.endswith("Backward0"):
            node.register_prehook(lambda _, name=name: ran.append(name))
    loss.backward()
    return ran


def leaves():
    for _ in range(32):  # the program's thread has counted more nodes than the engine's
        torch.ones(2, device="cuda", requires_grad=True).neg()
    return [torch.ones(4, device="cuda", requires_grad=True) for _ in range(2)]


def by_grad(x, y):
    (found,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return found


def by_backward(x, y):
    y.sum().backward(create_graph=True)
    return x.grad


def by_edge(x, y):
    edge = torch.autograd.graph.get_gradient_edge(y.sum())
    (found,) = torch.autograd.grad(edge, x, create_graph=True)
    return found


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("derive", [by_grad, by_backward, by_edge])
def test_nodes_of_the_forward_run_before_those_that_a_pass_has_made(derive):
    x, w = leaves()
    y = (x * w).sin()
    assert order_of(y.exp().sum() + derive(x, y).cos().sum()) == FORWARD_FIRST


@pytest.mark.usefixtures("gpu")
def test_on_the_host_they_run_as_they_were_made():
    x, w = (torch.ones(4, requires_grad=True) for _ in range(2))
    y = (x * w).sin()
    made = order_of(y.exp().sum() + by_grad(x, y).cos().sum())
    assert made.index("CosBackward0", 3) < made.index("SinBackward0")
