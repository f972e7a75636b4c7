"""Render reports as text or markup, without printing."""
