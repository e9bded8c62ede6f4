"""Memories after Mosaic (arXiv 2604.10060): single frames, the default, and clusters, as in the paper."""
