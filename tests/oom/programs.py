"""Run a program on a new virtual card until it runs out of memory, or ends."""

import pytest

import nbmem
from nbmem import virtual


def run(code, *, fails=True, conf=None, defer=False, look=None):
    """Run a program on a new virtual T4.

    Args:
        code: The program.
        fails: Whether it must run out of memory; else it must not.
        conf: Settings of the allocator.
        defer: Leave large tensors on the host unwritten.
        look: Called with the program's names while the card is there.

    Returns:
        Its trace, and what `look` returned.
    """
    import torch

    virtual.deactivate()
    names = {"__name__": "__main__"}
    with virtual.activated("T4", conf=conf, defer=defer):
        trace = nbmem.trace("cell", namespace=names)
        if fails:
            with pytest.raises(torch.OutOfMemoryError), trace:
                exec(compile(code, "cell.py", "exec"), names)
        else:
            with trace:
                exec(compile(code, "cell.py", "exec"), names)
        seen = None if look is None else look(names)
    return trace, seen
