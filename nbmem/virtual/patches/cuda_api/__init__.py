"""Patches of torch.cuda: devices, streams, generators, properties."""
