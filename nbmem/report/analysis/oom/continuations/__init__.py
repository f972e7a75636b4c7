"""Simulate how a step goes on after a failed request."""
