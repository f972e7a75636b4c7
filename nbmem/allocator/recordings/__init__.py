"""Read, reconstruct, undo, replay and compare recorded allocator events."""
