"""Mosaic's memory (arXiv 2604.10060): clusters on two levels, their rows on the host, their centroids on the device."""
