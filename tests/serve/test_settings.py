"""Settings: a flag wins over a variable, a variable over the file."""

from pathlib import Path

import pytest

from emblema.errors import EmblemaError
from emblema.serve.settings import ServeSettings


def test_flags_variables_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "emblema.toml"
    config.write_text('port = 1\nwaiting = 2\nbody_bytes = "3MiB"\nserved_name = "mine"\n')
    monkeypatch.setenv("EMBLEMA_PORT", "11")
    monkeypatch.setenv("EMBLEMA_GRACE", "1.5")
    settings = ServeSettings.read(config, port=111, host=None)
    assert (settings.port, settings.waiting, settings.body_bytes, settings.grace) == (111, 2, 3 * 2**20, 1.5)
    assert ServeSettings.read(config).port == 11 and settings.name == "mine" and settings.host == "127.0.0.1"
    assert ServeSettings.read().waiting == 256 and ServeSettings.read(model="/a/b/model").name == "model"


@pytest.mark.parametrize("flags", [{"port": 70_000}, {"nothing": 1}, {"deadline": "nan"}, {"waiting": 0}])
def test_wrong_settings_are_named(flags: dict[str, object]) -> None:
    with pytest.raises(EmblemaError, match=next(iter(flags))):
        ServeSettings.read(**flags)


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("port = = 1")
    for path in (tmp_path / "missing.toml", broken):
        with pytest.raises(EmblemaError, match=path.name):
            ServeSettings.read(path)
