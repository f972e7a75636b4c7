"""The vocabulary that every layer shares: events, spans, the session, units, errors."""
