"""The sidebar's kernel side: messages, and the hub that pushes them."""
