"""How far the virtual H100 is from the real one, workload by workload."""
