"""Streams, measured: how well every memory answers, and what it costs (`python -m benchmarks stream`)."""
