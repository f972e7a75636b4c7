"""Integrations: pytest, training frameworks, trackers, Prometheus.

Each has one file, which imports the other program only when it is used.
"""
