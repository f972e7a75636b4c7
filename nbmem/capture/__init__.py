"""Probes of torch's allocator, NVML, the host and training loops.

A probe reads and never changes what it reads: it creates no CUDA context, frees nothing, collects
nothing, synchronizes nothing and resets no counter. It cannot distinguish a virtual card from a
real one.
"""
