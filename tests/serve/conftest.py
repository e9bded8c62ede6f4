"""One server for the module's tests, and pictures to send."""

import base64
from collections.abc import Iterator

import pytest
from openai import OpenAI

from benchmarks.tasks import Episode
from tests.serve.sent import png_of
from tests.serve.servers import Running, serving
from tests.serve.writing_model import write_model

QUESTION = "on which land does the moon stand ?"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server without keys."""
    with serving(tmp_path_factory.mktemp("store"), text_bytes=20_000, file_bytes=2**20, parts=20) as running:
        yield running


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a tiny random model that can write any text."""
    model = write_model(tmp_path_factory.mktemp("writer"))
    with serving(tmp_path_factory.mktemp("written"), model=str(model), served_name="writer") as running:
        yield running


@pytest.fixture
def client(server: Running) -> OpenAI:
    """A client of it."""
    return server.client()


@pytest.fixture(scope="session")
def pngs(episode: Episode) -> list[bytes]:
    """The episode's pages as files."""
    return [png_of(page.image()) for page in episode.pages]


def data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def asked(pngs: list[bytes], question: str = QUESTION) -> list[dict[str, object]]:
    """A conversation of one turn, with pictures in it."""
    parts: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": data_url(png)}} for png in pngs]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": question}]}]
