"""Runs a program on the virtual card under a trace, in a namespace of its own."""

import gc

import pytest


@pytest.fixture(autouse=True)
def own_settings(tmp_path, monkeypatch):
    """No test reads or writes the settings of whoever runs it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("APPDATA", str(tmp_path / "config"))


@pytest.fixture
def run():
    """`run(code, before=..., card=..., conf=..., stacks=...)` gives (trace, namespace)."""
    torch = pytest.importorskip("torch", reason="the programs are torch programs")
    import nbmem.api as nbmem
    from nbmem import virtual

    spaces = []

    def go(code, *, before="", card="H100 80GB", stacks=False, **options):
        leave()
        virtual.activate(card, **options)
        names = {"__name__": "__main__"}
        spaces.append(names)
        exec(compile(before, "before.py", "exec"), names)
        with nbmem.trace("cell", namespace=names, stacks=stacks) as trace:
            exec(compile(code, "train.py", "exec"), names)
        return trace, names

    def leave():
        for names in spaces:
            names.clear()
        spaces.clear()
        torch.set_grad_enabled(True)
        gc.collect()
        virtual.deactivate()

    yield go
    leave()
