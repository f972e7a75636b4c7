"""Label tensors: weights, gradients, optimizer state, inputs, variables."""
