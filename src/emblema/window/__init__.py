"""Windows on a growing context: slide, reorder, recall, fork."""
