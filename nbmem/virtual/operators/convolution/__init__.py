"""Convolutions through cuDNN: formats, copies, and the kernels' workspaces."""
