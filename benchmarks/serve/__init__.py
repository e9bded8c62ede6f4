"""The service under load (`python -m benchmarks serve`), and soaked for half an hour (`… soak-serve`)."""
