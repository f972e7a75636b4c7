"""Where people meet nbmem: the notebook, the sidebar, the command line."""
