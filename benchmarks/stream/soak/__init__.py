"""A stream of 100,000 frames that is asked all the way, killed twice, and goes on (`python -m benchmarks soak`)."""
