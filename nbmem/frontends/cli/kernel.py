"""`nbmem kernel install|list|remove`: Jupyter kernels with a virtual card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.engine import TORCH
from nbmem.engine.choice import add_engine, choose
from nbmem.frontends.cli.subcommand import EXIT_OK, Subcommand, write_out
from nbmem.frontends.kernel import specs

if TYPE_CHECKING:
    import argparse

DEFAULT = "H100 80GB"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = (
        "nbmem kernel install [--gpu NAME] [--engine NAME] [--sys-prefix]\n"
        "       nbmem kernel list\n       nbmem kernel remove NAME"
    )
    parser.add_argument("action", choices=tuple(ACTIONS), metavar="install|list|remove")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the kernel to remove")
    parser.add_argument(
        "--gpu", metavar="NAME", help="its card (H100 80GB; `nbmem gpus` lists them; 2xT4 is two)"
    )
    add_engine(parser)
    parser.add_argument(
        "--sys-prefix",
        action="store_true",
        help="install it for the Jupyter of this environment alone",
    )


def run(options: argparse.Namespace) -> int:
    """Install, list or remove."""
    if (options.name is None) == (options.action == "remove"):
        wanted = "nbmem kernel remove NAME (`nbmem kernel list` has the names)"
        if options.action != "remove":
            wanted = f"nbmem kernel {options.action}, with --gpu {options.name} for a card"
        raise UsageError(f"Write {wanted}.")
    if options.action != "install" and (options.gpu or options.sys_prefix):
        raise UsageError("--gpu and --sys-prefix are for `nbmem kernel install`.")
    ACTIONS[options.action](options)
    return EXIT_OK


def _install(options: argparse.Namespace) -> None:
    gpu = options.gpu or DEFAULT
    engine = choose(options.engine)
    if engine == TORCH:
        from nbmem.engine import launch

        launch.environment(gpu)  # compiled now, and not while Jupyter waits for the kernel
    kernel = specs.install(gpu, engine, in_prefix=options.sys_prefix)
    write_out(
        f"Installed {kernel.name} into {kernel.folder}.\n"
        f"Choose `{kernel.title}` in Jupyter: torch.cuda is there from the first cell, and nbmem "
        f"is loaded. `nbmem kernel remove {kernel.name}` removes it."
    )


def _list(_options: argparse.Namespace) -> None:
    kernels = specs.installed()
    if not kernels:
        write_out("No kernel with a virtual card is installed. `nbmem kernel install` adds one.")
        return
    wide = max(len(kernel.name) for kernel in kernels)
    card = max(len(kernel.gpu) for kernel in kernels)
    write_out(
        "\n".join(
            f"{one.name:<{wide}}  {one.gpu:<{card}}  engine {one.engine:<5}  {one.folder}"
            for one in kernels
        )
    )


def _remove(options: argparse.Namespace) -> None:
    write_out(f"Removed {options.name} from {specs.remove(options.name).folder}.")


ACTIONS = {"install": _install, "list": _list, "remove": _remove}

COMMAND = Subcommand(
    "kernel", "add a Jupyter kernel in which a virtual card is there", configure, run
)
