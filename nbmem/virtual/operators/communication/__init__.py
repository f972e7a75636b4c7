"""Collectives: what NCCL takes beside their arguments."""
