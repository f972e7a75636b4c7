"""nbmem inside other programs: pytest, training frameworks, experiment trackers, Prometheus.

One file for each, and each imports its program only where it is used.
"""
