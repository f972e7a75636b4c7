"""Read what DDP, FSDP, DTensor and ZeRO hold, and the rank."""
