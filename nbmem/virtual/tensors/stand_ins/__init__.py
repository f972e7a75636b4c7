"""Stand-ins for values that nobody computed: what they look like, and their numbers."""
