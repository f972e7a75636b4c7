"""Layers of torch.nn: loss, softmax, embedding, pooling, resizing."""
