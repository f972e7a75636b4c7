"""Read torch's CUDA allocator: counters, history, pools, errors."""
