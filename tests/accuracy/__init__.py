"""Compare the virtual H100 with the real one, workload by workload."""
