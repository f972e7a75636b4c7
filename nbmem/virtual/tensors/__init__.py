"""Tensors without data: their storages, calls on them, shapes, and what values are known."""
