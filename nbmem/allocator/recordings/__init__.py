"""Recorded allocator events: read from a file, followed, taken back, replayed and compared."""
