"""The module without parameters that computes an operator."""

import pytest
import torch

from nbmem.capture.tensors.module_tree import ModuleTree
from nbmem.capture.tensors.operator_modules import operator_module

nn = torch.nn


class Block(nn.Module):
    """As in torchvision's ResNet: one ReLU for all."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.relu = nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Dropout(),
        )  # fmt: skip
        self.block = Block()
        self.last = nn.Sequential(nn.Linear(3, 3))
        self.act = nn.GELU()


@pytest.mark.parametrize(
    ("path", "operator", "expected"),
    [
        (".features.1", "relu", ".features.2"),
        (".features.1", "max_pool2d_with_indices", ".features.3"),
        (".features.4", "relu", ".features.5"),
        (".features.4", "native_dropout", ".features.6"),
        (".features.4", "max_pool2d_with_indices", None),
        (".block.bn1", "relu", ".block.relu"),
        (".block.bn2", "relu", ".block.relu"),
        (".last.0", "gelu", ".act"),
        (".features.1", "leaky_relu", None),
        (".features.1", "sigmoid", None),
        (".block.bn1", "gelu", None),
        ("", "relu", None),
    ],
)
def test_the_module_of_an_operator(path, operator, expected):
    assert operator_module(ModuleTree(Net()), path, operator) == expected
