"""`emblema models` and `emblema strategies`."""

import os

import pytest

from emblema.cli.listing import SMALL_MODEL
from emblema.models.pretrained import PRETRAINED, checkpoint_folder
from tests.cli.running import Command

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")


def test_models(run: Command) -> None:
    done = run("models", "--model", MODEL)
    assert done.returncode == 0, done.stderr
    for name in ("Qwen2.5-VL", "LLaVA", "Kimi", "relocation by 1000", "passed", SMALL_MODEL):
        assert name in done.stdout
    for name, found in PRETRAINED.items():
        (row,) = (line for line in done.stdout.splitlines() if line.strip().startswith(name))
        assert f" {found.download_mb:,} " in row and f" {found.folder_mb:,} " in row


@pytest.mark.parametrize("name", PRETRAINED)
def test_the_sizes_are_those_of_what_is_built(name: str) -> None:
    folder, found = checkpoint_folder(name), PRETRAINED[name]
    if not (folder / "config.json").is_file():
        pytest.skip("it is not built here")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    assert abs(size - found.folder_mb) < 0.03 * size
