"""What the program keeps in the memory of the host, where that would only cost."""
