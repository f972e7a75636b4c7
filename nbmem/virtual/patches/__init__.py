"""What is replaced in torch while a card is active: one file for each thing, one patcher."""
