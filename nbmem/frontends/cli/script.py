"""Run a script as python would: as `__main__`, with its own traceback.

Its arguments and folder are set, too.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING

from nbmem.capture.interpreter.last_call import as_names
from nbmem.core.errors import UsageError
from nbmem.core.suggestions import suggest_path
from nbmem.frontends.cli.main_function import MainFunction
from nbmem.frontends.cli.subcommand import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK

if TYPE_CHECKING:
    from nbmem.capture.hooks.function_calls import FunctionCalls

_HERE = str(Path(__file__).parent)


class Script:
    """A script that was read but not yet run.

    Attributes:
        name: Its file's name.
        namespace: Namespace for its top-level names.
    """

    def __init__(self, path: str, arguments: Sequence[str]) -> None:
        self._given = path
        self._path = str(Path(path).absolute())  # as python does for __file__
        self._arguments = list(arguments)
        self._source = _read(path)
        self._module = ModuleType("__main__")
        self._main: MainFunction | None = None
        self.name = Path(path).name
        self.namespace = self._module.__dict__

    def prepare(self) -> None:
        """Set `__main__`, sys.argv and sys.path as python would."""
        self._module.__file__ = self._path
        self._module.__loader__ = SourceFileLoader("__main__", self._path)
        self.namespace["__builtins__"] = sys.modules["builtins"]
        sys.modules["__main__"] = self._module
        sys.argv = [self._given, *self._arguments]
        if not sys.flags.safe_path:
            sys.path[0:1] = [str(Path(self._path).resolve().parent)]

    def run(self, calls: FunctionCalls | None = None) -> BaseException | None:
        """Run it; return the exception that ended it, or None.

        nbmem's own frames are removed.

        Args:
            calls: Follows the functions that its lines call; None to follow none.
        """
        try:
            self._main = MainFunction(self._source, self._path, calls)
            self._main.run(self.namespace)
            _join_threads()
        except BaseException as err:  # noqa: BLE001 - SystemExit and Ctrl-C also end a script
            error = err.with_traceback(_without_own(err.__traceback__))
            if not isinstance(error, SystemExit):
                _keep_as_last(error)
            return error
        return None

    @contextmanager
    def names_at_end(self, failed: Sequence[FrameType] = ()) -> Iterator[None]:
        """Add the variables of the function with which it ended to its names.

        A name of the script's own stays what it is.

        Args:
            failed: Frames of functions that it called and that failed with it, the innermost
                first.
        """
        main, self._main = self._main, None
        if main is None or main.frame is None:
            yield
            return
        with as_names([*failed, main.frame], self.namespace) as (added, _):
            self.namespace.update(added)
            names = tuple(added)
            try:
                yield
            finally:
                for name in names:
                    self.namespace.pop(name, None)
                main.release()  # its frame leads back to `main`
                failed = ()


def _without_own(at: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback behind this package's own functions."""
    while at is not None and at.tb_frame.f_code.co_filename.startswith(_HERE):
        at = at.tb_next
    return at


def _keep_as_last(error: BaseException) -> None:
    """Set what Python itself sets for the error that ends a script.

    A heap walk reaches the variables of the functions that failed by it.
    """
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error


def _join_threads() -> None:
    """Wait for the script's threads, as python does at its end.

    Memory that they hold is recorded, too.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def conclude(error: BaseException | None) -> int:
    """Print a script's final error as python would; return its exit code."""
    if error is None:
        return EXIT_OK
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or EXIT_OK
        sys.stderr.write(f"{error.code}\n")
        return EXIT_FAILED
    sys.stdout.flush()
    sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
    return EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_FAILED


def _read(path: str) -> bytes:
    source = Path(path)
    if source.is_dir():
        raise UsageError(f"{path} is a folder. Name the script inside it.")
    try:
        with io.open_code(str(source.absolute())) as file:
            return file.read()
    except FileNotFoundError:
        raise UsageError(f"There is no script {path}. {suggest_path(path)}") from None
    except OSError as err:
        raise UsageError(f"The script {path} cannot be read ({err.strerror}).") from err
