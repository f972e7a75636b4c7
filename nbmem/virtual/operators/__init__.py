"""Operators of torch on a virtual card, with one record per operator.

One file per family of operators.
"""
