"""Ranks on virtual cards beside real processes that talk: tests/ranks/__main__.py compares them."""
