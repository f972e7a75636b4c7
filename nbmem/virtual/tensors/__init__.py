"""Tensors without data: storages, operator calls, shapes, known values."""
