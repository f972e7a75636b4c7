"""Run a program on a virtual card in a process of its own."""
