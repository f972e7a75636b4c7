"""nbmem names every byte that nvidia-smi shows for a PyTorch notebook."""

__version__ = "0.1.0"
