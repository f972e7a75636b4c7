"""Integrations: pytest, training frameworks, trackers, Prometheus.

One file for each, and each imports its program only where it is used.
"""
