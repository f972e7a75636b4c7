"""Patches of Triton: launches, and the kernels that it compiles."""
