"""Clips made on the spot, and the bundled model loaded once."""

from tests.engine.conftest import reference
from tests.media.conftest import clip

__all__ = ["clip", "reference"]
