"""What each operator does on a card: one file per family, one record per operator."""
