"""Compiled regions: captured as on a card, planned by Inductor for it, run without their kernels.

What a compiled step takes is decided in Python: AOTAutograd's partitioner says what is saved and
what is computed again, Inductor fuses, orders and reuses buffers, and writes a wrapper that
allocates them. All of it runs here; the wrapper runs on the card's tensors, and what it takes and
gives back is what it would on a real card. Only the kernels do nothing.
"""
