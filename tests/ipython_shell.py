"""A real IPython shell with nbmem loaded, on a virtual card."""

import sys
from contextlib import contextmanager

from IPython.core.interactiveshell import InteractiveShell

import nbmem
from nbmem import virtual


@contextmanager
def shell_on_virtual_card(monkeypatch, card="H100 80GB"):
    """Open a shell with torch imported and no earlier error."""
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        monkeypatch.delattr(sys, name, raising=False)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    with virtual.activated(card):
        nbmem.load_ipython_extension(shell)
        shell.run_cell("import torch", store_history=True)
        yield shell
        shell.reset(new_session=False)
        nbmem.unload_ipython_extension(shell)
        InteractiveShell.clear_instance()
