"""What users have on disk and were told stays: ids, files, folders, plans, counts, commands, answers. See `make.py`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from emblema.errors import LoadError
from tests.golden import answers, interface, observe, running, typed
from tests.golden.make import DATA

CLOSE = 1e-4
"""Largest difference of a logit on another processor."""
RECORDS = dict(observe.records())


def held(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


def plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    return json.loads(json.dumps(value))


def test_identities_stay() -> None:
    assert plain(observe.identities()) == held("identities")


def test_every_file_is_there() -> None:
    assert {path.stem for path in (DATA / "files").iterdir()} == set(RECORDS) == set(held("files"))


@pytest.mark.parametrize("name", RECORDS)
def test_a_file_is_read_as_it_was_and_written_to_the_same_bytes(name: str) -> None:
    data = (DATA / "files" / f"{name}.safetensors").read_bytes()
    assert plain(observe.read_back(data)) == held("files")[name]
    assert observe.file_bytes(RECORDS[name]) == data
    assert observe.read_again(data) == data


@pytest.mark.parametrize("index", ["kept", "deleted"])
def test_a_folder_gives_back_what_was_put(tmp_path: Path, index: str) -> None:
    folder = tmp_path / "store"
    shutil.copytree(DATA / "store", folder)
    if index == "deleted":
        (folder / "index.sqlite").unlink()
    assert plain(observe.read_folder(folder)) == held("store")


def test_a_folder_is_written_to_the_same_files(tmp_path: Path) -> None:
    observe.write_folder(tmp_path / "store")
    written, kept = contents(tmp_path / "store"), contents(DATA / "store")
    assert [name for name in written if written[name] != kept[name]] == []
    for name in kept.keys() - written.keys():
        with pytest.raises(LoadError, match="for a strategy that is no longer offered"):
            observe.read_back(kept[name])


def contents(folder: Path) -> dict[str, bytes]:
    """A folder's files by name, without those that say what is known of the pieces: `read_folder` reads them."""
    known = ("index.sqlite", "catalogue.sqlite", "lock")
    paths = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "pinned"]
    paths = [path for path in paths if not path.name.startswith(known)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_plans_stay() -> None:
    planned, kept = plain(observe.plans()), held("plans")
    assert planned.keys() == kept.keys()
    for title, strategies in kept.items():
        assert planned[title].keys() == strategies.keys()
        for name, expected in strategies.items():
            assert planned[title][name] == expected, f"{title}: {name}"


@pytest.mark.parametrize("name", running.FAMILIES)
def test_ids_of_a_model_and_its_chunks_stay(name: str) -> None:
    kept = held("models")
    if transformers.__version__ != kept["transformers"]:
        pytest.skip(f"ids hold a model's description by transformers {kept['transformers']}")
    assert plain(running.model_identities(name)) == kept[name]


@pytest.mark.parametrize("name", running.FAMILIES)
def test_counts_of_linked_prompts_stay(name: str) -> None:
    counted, kept = plain(running.traces(name)), held("traces")[name]
    assert counted.keys() == kept.keys()
    for title, expected in kept.items():
        assert counted[title] == expected, title


def test_commands_and_options_stay() -> None:
    assert plain(typed.commands()) == held("commands")


def test_the_schema_of_the_service_stays() -> None:
    assert plain(interface.http_schema()) == held("http")


def test_public_classes_and_their_arguments_stay() -> None:
    assert plain(interface.public_names()) == held("interface")


@pytest.mark.slow
@pytest.mark.parametrize("model", answers.MODELS)
def test_answers_stay(model: str) -> None:
    """To the bit on the processor that they were made on."""
    kept = held("answers")
    found = answers.answers(model)
    assert found.keys() == kept[model].keys()
    for name, expected in kept[model].items():
        logits = found[name][expected["tokens"]]
        assert logits.tolist() == pytest.approx(expected["logits"], abs=CLOSE), name
        # Where two tokens are nearly as likely, another processor may choose the other.
        assert float(found[name].max()) <= expected["logits"][0] + CLOSE, name
    if kept["processor"] == answers.processor_name():
        assert [name for name, expected in kept[model].items() if answers.bits(found[name]) != expected["bits"]] == []


def test_names_for_vllm_stay() -> None:
    assert plain(typed.vllm_names()) == held("vllm")
