"""A forked child of a process with a context has none, and torch says so."""

import os
import pickle
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from nbmem.virtual.hardware.forks import BAD_FORK

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def in_child(act):
    """Return an action's result or error from a forked process."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = act()
        except Exception as err:  # noqa: BLE001 - its text is the answer
            answer = str(err)
        os.write(writer, pickle.dumps(answer))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pickle.load(pipe)
    os.waitpid(child, 0)
    return answer


def state():
    cuda = torch.cuda
    return cuda.is_initialized(), cuda._is_in_bad_fork(), cuda.is_available(), cuda.device_count()


def test_a_fork_before_the_context_has_one_of_its_own(gpu):
    assert in_child(state) == (False, False, True, 1)
    assert in_child(lambda: str(torch.ones(1, device="cuda").device)) == "cuda:0"
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(
    "act",
    [
        lambda: torch.ones(1, device="cuda"),
        lambda: torch.ones(1).cuda(),
        lambda: torch.ones(1).to("cuda"),
        lambda: torch.tensor([1.0], device="cuda"),
        lambda: torch.nn.Linear(2, 2, device="cuda"),
        lambda: torch.cuda.init(),  # noqa: PLW0108 - looked up later
        lambda: torch.cuda.synchronize(),  # noqa: PLW0108 - looked up later
        lambda: torch.cuda.set_device(0),
        lambda: torch.cuda.Stream(),  # noqa: PLW0108 - looked up later
        lambda: torch.cuda.mem_get_info(),  # noqa: PLW0108 - looked up later
        lambda: torch.cuda.get_device_name(),  # noqa: PLW0108 - looked up later
    ],
)
def test_a_fork_behind_the_context_is_refused_in_torchs_words(gpu, act):
    held = torch.ones(1, device="cuda")
    assert in_child(act) == BAD_FORK
    act()
    del held, gpu


def test_what_the_parent_left_there_cannot_be_computed_with(gpu):
    held = torch.ones(4, device="cuda", requires_grad=True)
    assert in_child(state) == (False, True, True, 1)
    assert in_child(lambda: str(held.view(2, 2).device)) == "cuda:0"
    for act in (lambda: held + 1, lambda: held * 2, lambda: held.detach().add_(1)):
        assert in_child(act).startswith("CUDA error: initialization error")
    assert in_child(lambda: (torch.cuda.memory_allocated(), torch.cuda.memory_stats())) == (0, {})
    assert in_child(lambda: (torch.manual_seed(1), torch.cuda.empty_cache())[1]) is None
    (held * 2).sum().backward()
    assert state() == (True, False, True, 1)


class _OnCpu(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        return torch.randn(1 << 10)


class _OnCard(_OnCpu):
    def __getitem__(self, number):
        return torch.ones(3, device="cuda")


def test_workers_of_a_loader_work_on_the_cpu_alone(gpu):
    held = torch.ones(1, device="cuda")
    options = {"batch_size": 2, "num_workers": 1, "multiprocessing_context": "fork"}
    assert [batch.shape[0] for batch in DataLoader(_OnCpu(), **options)] == [2, 2]
    with pytest.raises(RuntimeError, match=BAD_FORK) as failed:
        list(DataLoader(_OnCard(), **options))
    assert "nbmem/virtual" not in str(failed.value)
    del held, gpu


def test_a_fork_while_another_thread_has_the_card_finds_its_lock_free(gpu):
    held = torch.ones(1, device="cuda")
    taken, forked = threading.Event(), threading.Event()

    def hold():
        with gpu.lock:
            taken.set()
            forked.wait(0.2)  # the fork waits for the lock

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()

    def free():
        mine = []
        other = threading.Thread(target=lambda: mine.append(gpu.lock.acquire(timeout=10)))
        other.start()
        other.join()
        return mine

    assert in_child(free) == [True]
    forked.set()
    thread.join()
    del held
