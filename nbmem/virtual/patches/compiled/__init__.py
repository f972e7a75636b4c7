"""Compiled regions: captured, planned by Inductor, run without kernels.

The memory of a compiled step is decided in Python. AOTAutograd's partitioner selects what is saved
and what is recomputed. Inductor fuses, orders and reuses buffers, and writes a wrapper that
allocates them. All of it runs here. The wrapper runs on the card's tensors, and allocates and frees
what it would on a real card. Only the kernels do nothing.
"""
