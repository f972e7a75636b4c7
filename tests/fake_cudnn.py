"""Fake cuDNN whose kernels have given workspaces."""

from nbmem.virtual.card_names import find_card
from nbmem.virtual.hardware.cudnn.client import CudnnClient
from nbmem.virtual.hardware.cudnn.problem import Answer


class FakeCudnn(CudnnClient):
    """Fake cuDNN that lists kernels with these workspaces."""

    def __init__(self, *sizes):
        super().__init__(find_card("H100"))
        self.answers = tuple(map(Answer, sizes))
        self.asked_for_all = 0

    def first_kernel(self, problem):
        return self.answers[0] if self.answers else None

    def all_kernels(self, problem):
        self.asked_for_all += 1
        return self.answers
