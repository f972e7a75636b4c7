"""A program to estimate: its source, variables and serialized names."""
