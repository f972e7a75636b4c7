"""Views: each turns a Report into text or markup and returns it; none of them prints."""
