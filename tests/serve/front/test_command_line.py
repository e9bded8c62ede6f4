"""Which options of a command line are the service's, and which the engine's."""

import pytest

from emblema.errors import EmblemaError
from emblema.serve.front.command_line import split_options


def test_options_for_listening_are_the_service_s() -> None:
    given = ["--dtype", "float32", "--host=::1", "--api_key", "a", "b", "--port", "1", "--port", "2", "--enforce-eager"]
    own, others = split_options(given)
    assert own == {"host": ["::1"], "api_key": ["a", "b"], "port": ["2"]}
    assert others == ["--dtype", "float32", "--enforce-eager"]
    assert split_options(["--allowed-origins", '["https://a"]']) == ({"allowed_origins": ['["https://a"]']}, [])


@pytest.mark.parametrize(
    "options", [["--port"], ["--host", "a", "b"], ["--uds=x"], ["--ssl-ca-certs", "x"], ["--api-key"]]
)
def test_what_says_nothing_to_the_service_is_refused(options: list[str]) -> None:
    with pytest.raises(EmblemaError, match=options[0].partition("=")[0]):
        split_options(options)
