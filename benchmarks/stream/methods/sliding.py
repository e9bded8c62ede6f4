"""A sliding window with sinks (StreamingVLM): what leaves the window is forgotten."""

from emblema.stream.method import Method


class Sliding(Method):
    """Keeps nothing beside sinks and window."""

    name = "sliding"
