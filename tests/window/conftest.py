"""The bundled model, loaded once, and a few pictures of its world."""

from tests.engine.conftest import episode, reference

__all__ = ["episode", "reference"]
