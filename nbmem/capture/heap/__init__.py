"""Find what keeps memory alive, in one walk over the live heap.

The walk runs none of the user's code. `walk()` starts at everything that can name a tensor
(places.py). It goes forward through the objects that Python's garbage collector sees
(reachability.py) and the graphs that only torch sees (graphs.py). Then it goes back from the
tensors along the few objects that lead to them (paths.py). Each path is written as it would be
typed (path_names.py). What nothing reaches is searched separately (unreachable.py).

It collects nothing and holds nothing after it returns. It knows an object by `type()`, never by
`isinstance`, which reads `__class__`. It reads attributes past any `__getattr__` or property. It
reads no saved tensor through the hooks that would compute it again.
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
