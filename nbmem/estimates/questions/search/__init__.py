"""The search of `fit`: values that are run, and values that are replayed."""
