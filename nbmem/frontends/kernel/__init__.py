"""Jupyter kernels in which a virtual card is there from the first cell."""
