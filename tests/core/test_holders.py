"""Holders of storages, counted once, and the bytes a root frees."""

from nbmem.core.session.holders import HolderKind, roots_of, storages_of
from nbmem.core.session.session import Holders

K = HolderKind
NAMES = ("(4,) float32", "model", "model.weight", "sd", "sd['weight']", "Out[3]")


def test_a_shared_storage_is_counted_once_and_frees_nothing_alone():
    table = Holders.from_rows(
        [
            (512, 16, 0, K.NAME, 1, 2),
            (512, 16, 0, K.NAME, 3, 4),
            (4096, 64, 0, K.OUT, 5, 5),
            (8192, 32, 0, K.OUT, 5, 5),
            (8192, 32, 0, K.NAME, 3, 4),
        ]
    )
    storages = storages_of(table, NAMES)
    assert [(s.addr, s.size, s.name) for s in storages] == [
        (4096, 64, "Out[3]"),
        (8192, 32, "Out[3]"),
        (512, 16, "model.weight"),
    ]
    found = {root.name: (root.kind, root.reached, root.alone) for root in roots_of(storages)}
    assert found == {
        "Out[3]": (K.OUT, 96, 64),
        "sd": (K.NAME, 48, 0),
        "model": (K.NAME, 16, 0),
    }
