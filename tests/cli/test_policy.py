"""`emblema policy` on a folder that an engine measured into."""

import json
from pathlib import Path

import pytest

from emblema import Engine, Store
from emblema.store.catalogue import FILE
from tests.cli.running import emblema, refused


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A store in which two tenants' measurements are kept, and the first one's digest."""
    folder = tmp_path_factory.mktemp("policies") / "kept"
    with Store(folder) as store:
        engine = Engine.load("reference", store=store, salt=b"alice")
        for _ in range(5):
            engine.policy_runtime.record("image", "patch", 0.25, False)
        engine.policy_runtime.record("page", "query", 0.001, True)
        engine.policy_runtime.set_plateau(24)
        engine.on(store.tenant(b"bob")).policy_runtime.record("text", "patch", 0.0, True)
        return folder, engine.store.owner


def test_it_says_what_auto_trusts(measured: tuple[Path, str]) -> None:
    folder, owner = measured
    done = emblema("policy", "--store", str(folder), "--plain")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert any({"image", "patch", "no"} <= set(line) for line in lines), done.stdout
    assert any({"page", "query", "yes"} <= set(line) for line in lines), done.stdout
    told = json.loads(emblema("policy", "--store", str(folder), "--json", "--owner", owner[:6]).stdout)
    assert [(one["kind"], one["lane"], one["open"]) for one in told] == [
        ("image", "patch", False),
        ("page", "query", True),
    ]
    assert told[0]["kl"] == 0.25 and told[0]["agreement"] == 0 and told[0]["samples"] == 5
    assert {one["owner"] for one in told} == {owner} and {one["plateau"] for one in told} == {24}
    assert "from rank 24 on" in done.stdout


def test_nothing_measured_and_bad_folders(measured: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = emblema("policy", "--store", str(tmp_path / "empty"))
    assert done.returncode == 0 and "Nothing was measured" in done.stdout
    assert "no such folder" in refused("policy", "--store", str(tmp_path / "none"))
    bad = tmp_path / "bad" / "policy"
    bad.mkdir(parents=True)
    (bad / FILE).write_text("no database")
    assert FILE in refused("policy", "--store", str(tmp_path / "bad"))
