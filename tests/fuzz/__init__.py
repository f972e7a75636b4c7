"""Hostile files by the thousand: `python -m tests.fuzz --files 100000`."""
