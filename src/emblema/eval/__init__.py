"""What a user runs on a model of theirs: the check, the demo, and the metrics of both."""
