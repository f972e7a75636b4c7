"""Advice with numbers: rules that read a recording and say what to do and what it brings."""

from nbmem.tips.engine import Advice, advise, find, rule_named
from nbmem.tips.rules import RULES

__all__ = ["RULES", "Advice", "advise", "find", "rule_named"]
