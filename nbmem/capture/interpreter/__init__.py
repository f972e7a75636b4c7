"""Read what Python's interpreter holds without running the user's code."""
