"""Which options of a command line are the service's, and which the engine's."""

from pathlib import Path

import pytest

from emblema.errors import EmblemaError
from emblema.serve.front.command_line import split_options, take_file


def test_options_for_listening_are_the_service_s() -> None:
    given = ["--dtype", "float32", "--host=::1", "--api_key", "a", "b", "--port", "1", "--port", "2", "--enforce-eager"]
    own, others = split_options(given)
    assert own == {"host": ["::1"], "api_key": ["a", "b"], "port": ["2"]}
    assert others == ["--dtype", "float32", "--enforce-eager"]
    assert split_options(["--port", "1", "-tp", "2", "-O3"]) == ({"port": ["1"]}, ["-tp", "2", "-O3"])
    assert split_options(["--allowed-origins", '["https://a"]']) == ({"allowed_origins": ['["https://a"]']}, [])


@pytest.mark.parametrize(
    "options", [["--port"], ["--host", "a", "b"], ["--uds=x"], ["--ssl-ca-certs", "x"], ["--api-key"]]
)
def test_what_says_nothing_to_the_service_is_refused(options: list[str]) -> None:
    with pytest.raises(EmblemaError, match=options[0].partition("=")[0]):
        split_options(options)


@pytest.mark.parametrize("line", ["port: 1", "api_key: x", '"host": "0.0.0.0"', "uds: x", "ssl-ca-certs: x"])
@pytest.mark.parametrize("form", ["--config={}", "--config {}"])
def test_a_file_of_the_engine_s_options_says_nothing_of_listening(tmp_path: Path, line: str, form: str) -> None:
    file = tmp_path / "options.yaml"
    options = form.format(file).split()
    file.write_text("dtype: float32\nother:\n  port: 1\n")
    assert split_options([*options, "--port=2"]) == ({"port": ["2"]}, options)
    assert take_file(["--a", *options, "--b"]) == (file.read_text(), ["--a", "--b"])
    file.write_text(f"dtype: float32\n{line}\n")
    with pytest.raises(EmblemaError, match="the service listens itself"):
        split_options(options)
    file.unlink()
    with pytest.raises(EmblemaError, match="cannot be read"):
        split_options(options)
