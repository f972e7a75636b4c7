"""nbmem inside IPython: the extension, `%%memtrace` and `%nbmem`."""
