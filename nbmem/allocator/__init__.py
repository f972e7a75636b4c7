"""PyTorch's CUDA caching allocator, simulated byte for byte for each release of torch."""
