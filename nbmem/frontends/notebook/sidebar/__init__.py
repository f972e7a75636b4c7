"""Connect live messages to a kernel: comms, status line, page actions."""
