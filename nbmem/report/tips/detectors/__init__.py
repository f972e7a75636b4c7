"""Detect one kind of wasted memory in each module, for the rules of tips."""
