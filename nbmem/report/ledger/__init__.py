"""Turn allocator events into ledgers that add up to the card's memory."""
