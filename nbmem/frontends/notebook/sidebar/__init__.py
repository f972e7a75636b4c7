"""What ties the live messages to a kernel: comms, the progress line, what a page may do."""
