"""Define the MIME types of what nbmem draws in a notebook's output."""

MIME = "application/vnd.nbmem.report+json"
"""MIME type of the front end's renderer (labextension/src/explorer/renderer.ts)."""
OOM_MIME = "application/vnd.nbmem.oom+json"
"""MIME type of the card of an out-of-memory error (labextension/src/explorer/oomcard.ts)."""
FIT_MIME = "application/vnd.nbmem.fit+json"
"""MIME type of a fit's chart (labextension/src/explorer/fitchart.ts)."""
DRAWN = (MIME, OOM_MIME, FIT_MIME)
"""What the explorer's script draws in a page of its own."""
