"""What keeps memory alive: one look at the live heap, which runs none of the user's code.

`walk()` goes forward from everything that can name a tensor (places.py) through the objects that
Python's garbage collector sees (reach.py) and the graphs that only torch sees (graphs.py), then
back from the tensors along the few objects that lead to them (ways.py), and writes each way as a
person would type it (wording.py). What nothing reaches is looked at by itself (lost.py).

It collects nothing and holds nothing after it returns. It knows an object by `type()`, never by
`isinstance` (which asks `__class__`), reads attributes past any `__getattr__` or property, and
reads no saved tensor through the hooks that would compute it again.
"""

from nbmem.capture.heap.heap_walk import Cut, Walk, reached, reached_from, walk, walk_in_pieces

__all__ = ["Cut", "Walk", "reached", "reached_from", "walk", "walk_in_pieces"]
