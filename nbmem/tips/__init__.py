"""Advice with numbers: rules that read a recording and say what to do and what it brings."""
