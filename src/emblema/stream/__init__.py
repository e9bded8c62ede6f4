"""Hours of video in a bounded memory: rows of frames on the host or disk, and few of them retrieved in each layer."""
