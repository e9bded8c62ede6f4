"""A stream of 20,000 frames that is asked all the way, killed once, and goes on (`python -m benchmarks soak`)."""
