"""Clips made on the spot."""

from tests.media.conftest import clip

__all__ = ["clip"]
