"""Files: the door for those of strangers, the way out for nbmem's own, sessions and snapshots."""
