"""Record what happens in a cell, and build a Session when it ends."""
