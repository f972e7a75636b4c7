"""Host memory of the program: deferred writes and pinned allocations."""
