"""Describe one operator on a card: its record, checks and autograd."""
