"""Read the files of a world's ranks as one report."""

from nbmem.report.analysis.world.world_builder import read_world

__all__ = ["read_world"]
