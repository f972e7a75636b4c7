"""Everything that is changed in torch and in NVML while a virtual card is active."""
