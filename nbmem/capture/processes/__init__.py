"""Find the other processes on a card and their Jupyter kernels."""
