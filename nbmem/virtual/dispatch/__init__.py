"""Dispatch operators on a virtual card: the mode and what it checks."""
