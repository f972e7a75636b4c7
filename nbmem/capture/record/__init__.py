"""Capture: what happened in a cell, frozen into a Session when it ends."""
