"""One server that the clients of others talk to, as a process on loopback; nothing leaves this machine."""

import importlib.util
import os
from collections.abc import Iterator

import httpx
import pytest

from tests.clients.asking import MODEL, ending
from tests.serve.processes import Process, process
from tests.serve.writing_model import write_model

CLIENTS = importlib.util.find_spec("litellm") is not None
collect_ignore_glob = [] if CLIENTS else ["test_*.py"]
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1", "ANONYMIZED_TELEMETRY": "False",
    "OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none", "NO_PROXY": "*",
}  # fmt: skip
"""Nobody is told anything, and no table of prices is fetched."""
if CLIENTS:
    # Before the clients are imported, which read them.
    os.environ.update(QUIET)


def pytest_report_header() -> list[str]:
    return [] if CLIENTS else ["the clients of others are not installed: run `make test-clients`"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """`emblema serve` with a tiny random model that can write any text."""
    model = write_model(tmp_path_factory.mktemp("model"))
    options = (str(model), "--set", f"served_name={MODEL}")
    with process(tmp_path_factory.mktemp("store"), *options) as running:
        yield running


@pytest.fixture(scope="session")
def address(server: Process) -> str:
    """The base address of OpenAI's clients."""
    return f"{server.address}/v1"


@pytest.fixture(scope="session")
def http(server: Process) -> Iterator[httpx.Client]:
    """The same server without a client library."""
    with httpx.Client(base_url=server.address, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def words(http: httpx.Client) -> str:
    """A question whose reply ends by itself."""
    return ending(http)
