"""Gather facts of the user's program: modules, optimizers, batch sizes."""
