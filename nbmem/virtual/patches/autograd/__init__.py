"""Patches of autograd: engine, autocast, tracing, threads."""
