"""Unified memory: pages moved between card and host, by operator.

`accesses.py` logs which memory each operator uses while a program runs on a card of unlimited
memory. `driver.py` pages that log as the driver of a real card would, `ideal.py` with the fewest
transfers.
"""
