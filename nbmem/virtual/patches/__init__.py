"""Replacements in torch while a virtual card is active."""
