"""Patch torch's methods and names for a while, and take every patch back."""
