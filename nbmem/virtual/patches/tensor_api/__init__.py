"""Patches of tensors: attributes, factories, transfers, storages."""
