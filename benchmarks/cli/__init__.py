"""`python -m benchmarks …`: commands in groups, and the options that several of them take."""
