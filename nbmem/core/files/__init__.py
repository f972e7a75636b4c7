"""Read untrusted files and write nbmem's own: sessions and snapshots."""
