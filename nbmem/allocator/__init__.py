"""PyTorch's CUDA caching allocator, simulated for each release of torch.

The simulation is exact to the byte.
"""
