"""Names that can be no model's are refused without a question to a hub."""

from pathlib import Path

import pytest

from emblema import Engine
from emblema.errors import ModelError
from emblema.models.names import BUNDLED, PRETRAINED_NAMES, check_model_name
from emblema.models.pretrained import PRETRAINED


def test_names_that_may_be_a_model_s_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for name in (*BUNDLED, *PRETRAINED_NAMES, "mine", "./mine", tmp_path / "mine", "owner/name-1.5_b"):
        check_model_name(name)


@pytest.mark.parametrize(
    "name", ["nosuch", "", "./nosuch", "~/nosuch", "/no/such", "a/b/c", "owner/", "two words/x", "x" * 5_000, "\0"]
)
def test_others_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="there is no model"):
        check_model_name(name)


@pytest.mark.parametrize(
    "name, near", [("refrence", "reference"), ("Reference-Streem", "reference-stream"), ("smollm2", "smollm2-135m")]
)
def test_near_names_are_told(name: str, near: str) -> None:
    with pytest.raises(ModelError, match=rf"did you mean [^?]*\b{near}\b"):
        check_model_name(name)


def test_an_engine_asks_no_hub_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoConfig

    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: pytest.fail("a hub was asked"))
    with pytest.raises(ModelError, match="did you mean reference"):
        Engine.load("refrence")


def test_the_pretrained_ones_are_those_that_can_be_built() -> None:
    assert set(PRETRAINED_NAMES) == set(PRETRAINED)
