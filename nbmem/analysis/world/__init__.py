"""The files of a world's ranks read as one report."""

from nbmem.analysis.world.build import read_world

__all__ = ["read_world"]
