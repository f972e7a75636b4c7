"""A Jupyter server for tests, with settings and data in a scratch folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import nbformat

from tests import forked_kernels

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "nbmem" / "labextension"
OVERRIDES = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
    },
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}
MODULES = {"lab": "jupyterlab", "notebook": "notebook"}


class Server:
    """JupyterLab or Notebook 7, until `stop()`.

    Attributes:
        url: Where it answers, with a slash at its end.
        app: `lab` or `notebook`.
    """

    def __init__(self, root: Path, app: str) -> None:
        self.app = app
        self._root = root
        self._notebooks = root / "notebooks"
        self._notebooks.mkdir(parents=True)
        settings = root / "settings"
        settings.mkdir()
        (settings / "overrides.json").write_text(json.dumps(OVERRIDES))
        extensions = root / "data" / "labextensions"
        extensions.mkdir(parents=True)
        (extensions / "nbmem-labextension").symlink_to(EXTENSION)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER_", "JPY_"))}
        self._env = env | {
            "JUPYTER_CONFIG_DIR": str(root / "config"),
            "JUPYTER_DATA_DIR": str(root / "data"),
            "JUPYTER_PREFER_ENV_PATH": "0",  # this checkout's extension, not an installed one
            "JUPYTER_RUNTIME_DIR": str(root / "run"),
            "IPYTHONDIR": str(root / "ipython"),
            "XDG_CONFIG_HOME": str(root / "settings"),
            "PYTHONPATH": str(ROOT),
        }
        self._forks: subprocess.Popen[bytes] | None = None
        options = [
            "--no-browser",
            "--allow-root",
            "--ip=127.0.0.1",
            "--port=0",
            f"--ServerApp.root_dir={self._notebooks}",
            "--IdentityProvider.token=",
            "--ServerApp.password=",
            "--ServerApp.disable_check_xsrf=True",
            f"--LabServerApp.app_settings_dir={settings}",
            "--LabApp.expose_app_in_browser=True",
            "--JupyterNotebookApp.expose_app_in_browser=True",
        ]
        self._log = (root / "server.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULES[app], *options],
            env=self._env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self._notebooks,
        )
        self.url = self._wait()

    @property
    def runtime(self) -> Path:
        """Return the folder of connection files of the server and its kernels."""
        return self._root / "run"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the server's kernels."""
        return dict(self._env)

    def notebook(self, name: str, *cells: str, kernel: str = "python3") -> str:
        """Write a notebook without traces of earlier runs; return its name."""
        if kernel == forked_kernels.KERNEL and self._forks is None:
            places = self._root / "data", self._root / "forks"
            self._forks = forked_kernels.install(*places, self._env)
        for touched in self._notebooks.glob(f"{name}.*"):
            touched.unlink()
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
        book.metadata["kernelspec"] = {"name": kernel, "display_name": "Python 3"}
        nbformat.write(book, self._notebooks / name)
        return name

    def jupyter(self, *words: str) -> str:
        """Run a Jupyter command with this server's settings; return its output."""
        command = [sys.executable, "-m", "jupyter", *words]
        asked = subprocess.run(
            command, env=self._env, capture_output=True, text=True, check=True, timeout=120
        )
        return asked.stdout + asked.stderr

    def touch(self, name: str) -> None:
        """Make an empty file beside the notebooks: what a cell waits for."""
        (self._notebooks / name).touch()

    def saved(self, name: str) -> nbformat.NotebookNode:
        """Read a notebook from the disk."""
        return nbformat.read(self._notebooks / name, as_version=4)

    def get(self, path: str) -> Any:
        """Return the server's answer to a GET request."""
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def log(self) -> str:
        """Return what the server has printed."""
        return (self._root / "server.log").read_text()

    def end_kernels(self) -> None:
        """End every kernel, so that the next test has the machine to itself."""
        for kernel in self.get("api/kernels"):
            end = urllib.request.Request(f"{self.url}api/kernels/{kernel['id']}", method="DELETE")
            urllib.request.urlopen(end, timeout=30).close()

    def forget_settings(self) -> None:
        """Restore the default settings."""
        shutil.rmtree(self._root / "config" / "lab" / "user-settings", ignore_errors=True)

    def stop(self) -> None:
        """End the server with its kernels."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._forks is not None:
            self._forks.kill()
            self._forks.wait()
        self._log.close()

    def _wait(self, seconds: float = 90) -> str:
        info = self._root / "run" / f"jpserver-{self._process.pid}.json"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError((self._root / "server.log").read_text())
            try:
                url = json.loads(info.read_text())["url"]
                with urllib.request.urlopen(url + "api/status", timeout=2):
                    return url
            except (OSError, ValueError, KeyError):
                time.sleep(0.1)  # the server's start, the one thing that cannot be waited for
        self._process.kill()
        raise TimeoutError((self._root / "server.log").read_text())
