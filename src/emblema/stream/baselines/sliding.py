"""A sliding window with sinks (StreamingVLM): what leaves the window is forgotten."""

from emblema.stream.baselines.base import Base


class Sliding(Base):
    """Keeps nothing beside sinks and window."""

    name = "sliding"
