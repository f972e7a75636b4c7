"""The kernel's side of the sidebar: messages, and the hub that pushes them while a cell runs."""
