"""Types shared by every layer: events, spans, sessions, units and errors."""
