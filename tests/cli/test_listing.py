"""`emblema models` and `emblema strategies`."""

import os

from tests.cli.running import Command

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")


def test_models(run: Command) -> None:
    done = run("models", "--model", MODEL)
    assert done.returncode == 0, done.stderr
    for name in ("Qwen2.5-VL", "LLaVA", "Kimi", "relocation by 1000", "passed"):
        assert name in done.stdout
