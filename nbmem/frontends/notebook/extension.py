"""Load and unload the IPython extension.

Unloading removes everything that loading installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbmem.frontends.notebook.caller_context import is_reloading
from nbmem.frontends.notebook.cell_hooks import CellHooks
from nbmem.frontends.notebook.commands.base import Notebook
from nbmem.frontends.notebook.completion import Completion, Inspection
from nbmem.frontends.notebook.engines import show_engines
from nbmem.frontends.notebook.error_boundary import error_boundary, release_with_retry, shell_entry
from nbmem.frontends.notebook.kernel_status import KernelStatusWriter
from nbmem.frontends.notebook.magics import Magics, suggest_magic
from nbmem.frontends.notebook.tracer import Tracer
from nbmem.frontends.notebook.transformer import insert_before_cell_magic, strip_memtrace_line

if TYPE_CHECKING:
    from nbmem.frontends.notebook.sidebar.sidebar import Sidebar
    from nbmem.frontends.sidebar.hub_state import HubState

_LOADED: dict[Any, Extension] = {}
_RELOADING: dict[Any, Extension] = {}
"""Extensions that `%reload_ext` unloads, as IPython advises if one is loaded already. Their last
report, history and virtual card (with the user's tensors) must not be lost."""


class Extension:
    """The extension as it is loaded into one shell."""

    def __init__(self, shell: Any, before: Extension | None = None) -> None:
        self._shell = shell
        self.tracer = Tracer(shell)
        self.hooks = CellHooks(shell, self.tracer)
        if before is not None:
            self.tracer.last = before.tracer.last
            self.tracer.kept = before.tracer.kept
            self.tracer.activated = before.tracer.activated
            self.tracer.freed.extend(before.tracer.freed)
            self.hooks.rows.extend(before.hooks.rows)
            self.hooks.host_rows.extend(before.hooks.host_rows)
        notebook = Notebook(shell=shell, tracer=self.tracer, hooks=self.hooks)
        self._status_writer = KernelStatusWriter(shell, self.tracer)
        self._magics = Magics(notebook)
        self._completion = Completion(notebook)
        self._inspection = Inspection(shell)
        self._sidebar = _sidebar(notebook, None if before is None else before.sidebar_state())

    def load(self) -> None:
        """Install the transformer, hooks, magics, completion and sidebar."""
        insert_before_cell_magic(self._chains(), strip_memtrace_line)
        self._shell.events.register("pre_run_cell", self.hooks.pre_run_cell)
        self._shell.events.register("post_run_cell", self.hooks.post_run_cell)
        self._shell.events.register("post_run_cell", self._status_writer.post_run_cell)
        self._shell.events.register("post_run_cell", show_engines)
        self._shell.events.register("post_run_cell", suggest_magic)
        self._magics.install()
        self._completion.install()
        self._inspection.install()
        if self._sidebar is not None:
            with error_boundary("open the sidebar"):
                self._sidebar.open()

    def unload(self) -> None:
        """Remove everything from the shell, even where one part fails.

        A running trace is shown.
        """
        release_with_retry("end what is traced", self.hooks.close)
        if self._sidebar is not None:
            release_with_retry("close the sidebar", self._sidebar.close)
        release_with_retry("remove the status file", self._status_writer.close)
        release_with_retry("remove the completion", self._completion.remove)
        release_with_retry("remove the inspection", self._inspection.remove)
        release_with_retry("remove the magics", self._magics.remove)
        release_with_retry("end the process of estimates", _end_estimates)
        release_with_retry("forget the module trees", _forget_trees)
        events = self._shell.events
        for name, callback in (
            ("pre_run_cell", self.hooks.pre_run_cell),
            ("post_run_cell", self.hooks.post_run_cell),
            ("post_run_cell", self._status_writer.post_run_cell),
            ("post_run_cell", show_engines),
            ("post_run_cell", suggest_magic),
        ):
            if callback in events.callbacks.get(name, ()):
                events.unregister(name, callback)
        for chain in self._chains():
            if strip_memtrace_line in chain:
                chain.remove(strip_memtrace_line)

    def sidebar_state(self) -> HubState | None:
        """Return the sidebar's state, to keep across a reload; None without one."""
        return None if self._sidebar is None else self._sidebar.hub.state()

    def deactivate_card(self) -> None:
        """Deactivate the virtual card if this notebook activated it."""
        if self.tracer.activated:
            with error_boundary("deactivate the virtual card"):
                from nbmem.api import device_selection

                device_selection.stop_virtual()

    def _chains(self) -> list[list[Any]]:
        manager = self._shell.input_transformer_manager
        return [manager.cleanup_transforms, getattr(manager, "line_transforms", [])]


def loaded_tracer(shell: Any) -> Tracer | None:
    """Return the tracer of the extension in a shell, or None without it."""
    extension = _LOADED.get(shell)
    return None if extension is None else extension.tracer


def _forget_trees() -> None:
    """Drop the module trees that traces have remembered, if any."""
    trees: Any = sys.modules.get("nbmem.capture.tensors.module_tree")
    if trees is not None:
        trees.forget_trees()


def _end_estimates() -> None:
    """End the subprocesses of estimates, if any was started."""
    processes = sys.modules.get("nbmem.estimates.runs.worker_processes")
    if processes is not None:
        processes.end_all()


def _sidebar(notebook: Notebook, before: HubState | None) -> Sidebar | None:
    """Create the kernel's side of the sidebar.

    None in a terminal, which cannot show it, in a kernel that sends no comms, and if its creation
    fails.
    """
    if getattr(notebook.shell, "kernel", None) is None or not _sends_comms():
        return None
    with error_boundary("prepare the sidebar"):
        from nbmem.frontends.notebook.sidebar.sidebar import Sidebar

        return Sidebar(notebook, before)
    return None


def _sends_comms() -> bool:
    """Return whether the kernel sends what the package `comm` makes.

    ipykernel before 6.18, which Colab has, brings comms of its own. There `comm` is missing, or has
    the function that makes comms that send nothing.
    """
    try:
        import comm
    except ImportError:
        return False
    nowhere = getattr(comm, "_create_comm", None)
    return nowhere is None or comm.create_comm is not nowhere


@shell_entry("load the extension", in_cell=True)
def load_ipython_extension(shell: Any) -> None:
    """Load nbmem into a shell (`%load_ext nbmem`).

    Loading twice changes nothing.
    """
    if shell in _LOADED:
        return
    extension = Extension(shell, _RELOADING.pop(shell, None))
    _LOADED[shell] = extension
    try:
        extension.load()
    except BaseException:
        del _LOADED[shell]
        extension.unload()
        raise


@shell_entry("unload the extension", in_cell=True)
def unload_ipython_extension(shell: Any) -> None:
    """Unload nbmem from a shell (`%unload_ext nbmem`).

    Everything is undone, except that `%reload_ext` leaves the virtual card active.
    """
    extension = _LOADED.get(shell)
    if extension is None:
        return
    extension.unload()
    del _LOADED[shell]
    if is_reloading():
        _RELOADING[shell] = extension
    else:
        extension.deactivate_card()
