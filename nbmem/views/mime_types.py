"""Define the MIME types of what nbmem draws in a notebook's output."""

MIME = "application/vnd.nbmem.report+json"
"""MIME type of the front end's renderer (labextension/src/explorer/renderer.ts)."""
OOM_MIME = "application/vnd.nbmem.oom+json"
"""MIME type of the card of an out-of-memory error (labextension/src/explorer/oomcard.ts)."""
