"""From events to books: which bytes were what, at any moment, adding up to the card."""
