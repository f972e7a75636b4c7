"""Questions about programs: will it fit, what would help, which layers."""
