"""Session model: a recording's events, phases, ranks and names."""
