"""What a recording holds: session, events, phases, ranks and names."""
