"""A process group in which only one rank runs.

torch's process group, its communicators and their collectives are the real ones; the stand-in's
NCCL takes the other ranks to have what this one has, as the virtual card does.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlparse

from torch.distributed import Store

ID_BYTES = 128
"""Of a communicator's name, which rank 0 tells the others."""
STORES: list[Store] = []
"""C++ asks the Python object, which nothing else keeps."""


class LoneStore(Store):  # type: ignore[misc]
    """A store for a single process, which waits for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self._kept[key] = value if isinstance(value, bytes) else value.encode()

    def get(self, key: str) -> bytes:
        return self._kept.get(key, bytes(ID_BYTES))

    def add(self, key: str, amount: int) -> int:
        self._kept[key] = str(int(self._kept.get(key, b"0")) + amount).encode()
        return int(self._kept[key])

    def check(self, keys: list[str]) -> bool:
        return all(key in self._kept for key in keys)

    def wait(self, *keys: Any) -> None:
        pass


def single_rank_rendezvous(
    url: str, timeout: Any = None, **options: Any
) -> Iterator[tuple[Store, int, int]]:
    """Replace the rendezvous of env:// for a single rank."""
    del timeout, options
    said = {**os.environ, **{k.upper(): v for k, v in parse_qsl(urlparse(url).query)}}
    STORES.append(LoneStore())
    yield STORES[-1], int(said["RANK"]), int(said["WORLD_SIZE"])


def use_single_rank_rendezvous(way: Any = single_rank_rendezvous) -> None:
    """Make `init_process_group` wait for no other rank."""
    # The package has a function of this name, too.
    importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers["env"] = way
