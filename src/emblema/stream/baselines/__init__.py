"""Other memories with the same window, sinks and blocks, written from their papers; one file each."""
