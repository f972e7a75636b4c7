"""Attention: which kernel CUDA takes, what it saves and what it needs on the way."""
