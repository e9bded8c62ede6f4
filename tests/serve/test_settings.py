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


@pytest.mark.parametrize("given", ["127.0.0.1,media.lan", " 127.0.0.1 , media.lan,", '["127.0.0.1", "media.lan"]'])
def test_several_names_are_a_list_with_commas_or_json(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("127.0.0.1", "media.lan")
    assert ServeSettings.read(allowed_hosts=given).allowed_hosts == names
    config = tmp_path / "emblema.toml"
    config.write_text('allowed_hosts = ["127.0.0.1", "media.lan"]')
    assert ServeSettings.read(config).allowed_hosts == names
    monkeypatch.setenv("EMBLEMA_ALLOWED_HOSTS", given)
    settings = ServeSettings.read()
    assert settings.allowed_hosts == names and settings.media_limits.allowed_hosts == frozenset(names)
    monkeypatch.setenv("EMBLEMA_ALLOWED_HOSTS", "127.0.0.1")
    assert ServeSettings.read().allowed_hosts == ("127.0.0.1",)


def test_every_setting_of_several_names_is_read_so() -> None:
    found = [name for name, field in ServeSettings.model_fields.items() if "tuple" in str(field.annotation)]
    for name in found:
        one, other = ("http://a", "http://b") if name == "allowed_origins" else ("a", "b")
        assert getattr(ServeSettings.read(**{name: f"{one}, {other}"}), name) == (one, other)
    assert {"allowed_hosts", "allowed_origins", "host_names"} == set(found)


def test_an_unknown_setting_is_told_with_near_names() -> None:
    with pytest.raises(EmblemaError, match=r"no such setting: alowed_host \(did you mean allowed_hosts"):
        ServeSettings.read(alowed_host="x")
    with pytest.raises(EmblemaError, match="no such setting: foo; "):
        ServeSettings.read(foo="1")


@pytest.mark.parametrize(
    "name, value",
    [
        ("ALLOWED_HOSTS", "[1"),
        ("ALLOWED_HOSTS", "[1]"),
        ("PORT", "x"),
        ("SEVERAL", "perhaps"),
        ("BODY_BYTES", "3 cows"),
    ],
)
def test_wrong_variables_are_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"EMBLEMA_{name}", value)
    with pytest.raises(EmblemaError, match=f"the setting {name.lower()} is not right") as refused:
        ServeSettings.read()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", ["*", "localhost:3000", "http://localhost:3000/", "http://*.example"])
def test_pages_are_named_by_their_origin(value: str) -> None:
    with pytest.raises(EmblemaError, match="allowed_origins"):
        ServeSettings.read(allowed_origins=value)


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


@pytest.mark.parametrize("name", ["files_redis", "files_bucket"])
def test_a_setting_that_is_gone_names_what_to_do(tmp_path: Path, name: str) -> None:
    with pytest.raises(EmblemaError, match=f"{name} is gone: servers that share files share the folder"):
        ServeSettings.read(store=tmp_path, **{name: "redis://127.0.0.1"})
