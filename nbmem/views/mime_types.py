"""Define the MIME type under which a notebook's output holds a report."""

MIME = "application/vnd.nbmem.report+json"
"""The front end's renderer is registered for it (labextension/src/explorer/renderer.ts)."""
