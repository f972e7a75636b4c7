"""Ranks on virtual cards beside real processes."""
