"""The bundled model, loaded once, and a few pictures of its world."""

from tests.engine.conftest import episode, pages, reference

__all__ = ["episode", "pages", "reference"]
