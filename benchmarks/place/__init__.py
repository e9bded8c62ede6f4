"""Which replica a request should go to: a simulator driven by traces, and real replicas beside it."""
