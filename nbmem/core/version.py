"""The version of nbmem."""

__version__ = "0.1.0"
