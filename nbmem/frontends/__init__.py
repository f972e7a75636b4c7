"""Frontends: the notebook, the sidebar and the command line."""
