"""Unified memory: what a program would page between a card and the host, told from its operators.

`touches.py` notes which memory each operator uses while a program runs on a card without an end;
`driver.py` then pages it as the driver of a real card would, `ideal.py` as nobody could do better.
"""
