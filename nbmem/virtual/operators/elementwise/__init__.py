"""Operators on every element: pointwise, random, masks, types."""
