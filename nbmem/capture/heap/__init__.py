"""Find what keeps memory alive, in one walk over the live heap.

The walk runs none of the user's code. `walk()` starts at everything that can name a tensor
(interpreter/roots.py). It goes forward through the objects that Python's garbage collector sees
(reachability.py) and the graphs that only torch sees (tensors/autograd_graphs.py). Then it goes
back from the tensors along the few objects that lead to them (paths.py). Each path is written as it
would be typed (path_names.py). Tensors that no path reaches are searched separately
(unreachable.py).

It collects nothing and holds nothing after it returns. It identifies an object by `type()`, never
by `isinstance`, which reads `__class__`. It reads attributes without any `__getattr__` or property.
It reads no saved tensor through the hooks that would recompute it.
"""

from nbmem.capture.heap.heap_walk import (
    Cut,
    Walk,
    reachable_storages,
    reached_from,
    walk,
    walk_in_pieces,
)

__all__ = ["Cut", "Walk", "reachable_storages", "reached_from", "walk", "walk_in_pieces"]
