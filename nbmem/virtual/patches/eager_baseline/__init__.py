"""What planned regions would take in eager mode: each captured graph is run once as it is."""
