"""Traffic: one request after another on pages that recur, or do not, and what every method computes for them."""
