"""Define the MIME type under which a notebook's output holds a report."""

MIME = "application/vnd.nbmem.report+json"
"""MIME type of the front end's renderer (labextension/src/explorer/renderer.ts)."""
