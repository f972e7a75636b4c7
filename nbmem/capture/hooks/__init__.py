"""Watch the training loop, its writes to weights and its errors."""
