"""Define the MIME types under which a notebook's output holds what nbmem draws."""

MIME = "application/vnd.nbmem.report+json"
"""MIME type of the front end's renderer (labextension/src/explorer/renderer.ts)."""
OOM_MIME = "application/vnd.nbmem.oom+json"
"""MIME type of the card of an out-of-memory error (labextension/src/explorer/oomcard.ts)."""
