"""Stand-ins for unknown values: their sign, their seed, their numbers."""
