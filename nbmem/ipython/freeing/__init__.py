"""Actions that give memory back: what was asked for, predicted before and measured after."""

from nbmem.ipython.freeing.perform import perform

__all__ = ["perform"]
