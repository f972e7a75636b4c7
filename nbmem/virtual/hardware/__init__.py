"""The virtual card's memory, streams, counters and driver queries."""
