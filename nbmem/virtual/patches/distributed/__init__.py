"""Patches of torch.distributed: DDP, process groups, spawn."""
