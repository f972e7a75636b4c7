"""The card itself: its memory, streams and counters, and what the driver says of them."""
