"""Read autograd graphs and compiled graphs: saved tensors and buffers."""
