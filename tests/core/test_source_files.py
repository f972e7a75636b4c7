"""Whose file it is, on the machines that recordings come from."""

import queue

import pytest

from nbmem.core.session.source_files import is_in_package, is_library, is_stdlib

PACKAGES = (
    "/usr/local/lib/python3.12/dist-packages/torch/nn/modules/linear.py",
    "/somewhere/.local/lib/python3.11/site-packages/timm/models/vit.py",
    r"C:\Users\u\proj\.venv\Lib\site-packages\torch\_tensor.py",
    "/envs/a/lib/python3.10/site-packages/fastai/learner.py",
    "site-packages/torch/nn/modules/conv.py",
)
STDLIB = (
    "/usr/lib/python3.12/threading.py",
    "/envs/a/lib/python3.10/concurrent/futures/thread.py",
    "/usr/lib64/python3.13t/queue.py",
    "/lib/python314.zip/queue.py",
    r"C:\Users\u\AppData\Local\Programs\Python\Python313\Lib\threading.py",
    r"C:\Users\u\miniconda3\envs\a\lib\multiprocessing\connection.py",
    "<frozen importlib._bootstrap>",
    queue.__file__,
)
USERS = (
    "/somewhere/lib/train.py",
    "/somewhere/python/lib/model.py",
    "/tmp/ipykernel_77/12345.py",
    "<ipython-input-3-abc>",
    "<stdin>",
    "train.py",
    "/here/site-packages.py",
    r"C:\work\Lib\train.py",
    r"C:\work\queue.py",
)


@pytest.mark.parametrize("file", PACKAGES)
def test_an_installed_package(file):
    assert is_in_package(file)
    assert not is_stdlib(file)
    assert is_library(file)


@pytest.mark.parametrize("file", STDLIB)
def test_pythons_own_library(file):
    assert is_stdlib(file)
    assert not is_in_package(file)
    assert is_library(file)


@pytest.mark.parametrize("file", USERS)
def test_a_users_file(file):
    assert not is_library(file)
