"""What stands between nbmem and files: the door for those of strangers, the way out for its own."""
