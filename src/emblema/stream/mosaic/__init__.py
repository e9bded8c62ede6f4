"""Mosaic's memory (arXiv 2604.10060): clusters on two levels, on the host; representatives on the device."""
