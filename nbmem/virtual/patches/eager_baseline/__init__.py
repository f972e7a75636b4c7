"""Eager-mode memory of planned regions, from a run of each graph."""
