"""`emblema store …` on a folder that an engine filled."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from emblema import Engine
from tests.cli.running import emblema, refused

Told = dict[str, object]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three chunks and the patches of the two after the first."""
    folder = tmp_path_factory.mktemp("stores") / "kept"
    with Engine.load("reference", store=folder) as engine:
        pictures = [Image.new("RGB", (128, 128), colour) for colour in ("red", "green", "blue")]
        pages = [engine.add(picture) for picture in pictures]
        engine.prefill([*pages, "what colour is under the tent ?"], "patch-25%")
    return folder


def listed(folder: Path, *options: str) -> list[Told]:
    done = emblema("store", "ls", "--store", str(folder), "--json", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


def test_ls_and_stats_agree_with_the_files(filled: Path) -> None:
    found = listed(filled)
    files = {path.stem: path.stat().st_size for path in filled.rglob("*.safetensors")}
    assert {one["id"]: one["bytes"] for one in found} == files
    assert len(listed(filled, "--kind", "chunk")) == 3 and len(listed(filled, "--kind", "patch")) == 2
    assert listed(filled, "--owner", "shared") == []
    done = emblema("store", "stats", "--store", str(filled), "--json")
    stats = json.loads(done.stdout)
    assert stats["pieces"] == len(files) and stats["bytes"] == sum(files.values())
    (owned,) = stats["owners"].values()
    assert owned == {"chunks": 3, "patches": 2, "pinned": 0, "bytes": sum(files.values())}
    table = emblema("store", "ls", "--store", str(filled), "--plain").stdout
    assert all(name[:16] in table for name in files) and f"{len(files)} pieces" in table


def test_show_tells_what_a_piece_is(filled: Path) -> None:
    chunk = str(listed(filled, "--kind", "chunk")[0]["id"])
    done = emblema("store", "show", chunk[:20], "--store", str(filled), "--json")
    told = json.loads(done.stdout)
    assert told["id"] == chunk and told["meta"]["media"] == "image"
    assert "layers.0.keys" in told["tensors"] and len(told["patches"]) >= 1
    assert chunk in emblema("store", "show", chunk, "--store", str(filled)).stdout


def test_what_is_exported_is_imported_elsewhere_and_used(filled: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    assert emblema("store", "export", "--store", str(filled), "--out", str(out)).returncode == 0
    with Engine.load("reference", store=other) as engine:
        assert engine.store.ids() == []
    taken = emblema("store", "import", "--store", str(other), str(out))
    assert taken.returncode == 0 and "5 pieces taken, 0 kept, 0 refused" in taken.stdout
    with Engine.load("reference", store=filled) as first, Engine.load("reference", store=other) as second:
        found = [second.add(Image.new("RGB", (128, 128), colour)) for colour in ("red", "green", "blue")]
        assert second.store.statistics.hits == 3, "nothing is encoded again"
        prompt = [*found, "what colour is under the tent ?"]
        moved = second.prefill(prompt, "patch-25%")
        assert moved.usage.forming_tokens == 0
        here = [first.add(Image.new("RGB", (128, 128), colour)) for colour in ("red", "green", "blue")]
        assert torch.equal(moved.logits, first.prefill([*here, prompt[-1]], "patch-25%").logits)


def test_a_damaged_file_is_told_and_not_taken(filled: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    emblema("store", "export", "--store", str(filled), "--out", str(out))
    victim = sorted(out.iterdir())[0]
    data = bytearray(victim.read_bytes())
    data[-5] ^= 1
    victim.write_bytes(data)
    other = tmp_path / "other"
    with Engine.load("reference", store=other):
        pass
    taken = emblema("store", "import", "--store", str(other), str(out))
    assert taken.returncode == 1 and "4 pieces taken, 0 kept, 1 refused" in taken.stdout and victim.name in taken.stderr
    kept = next(iter(other.rglob("*.safetensors")))
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 1
    kept.write_bytes(data)
    found = emblema("store", "verify", "--store", str(other), "--json")
    report = json.loads(found.stdout)
    assert found.returncode == 1 and [one[0] for one in report["damaged"]] == [kept.stem]
    again = emblema("store", "verify", "--store", str(other))
    assert again.returncode == 0 and "3 pieces read" in again.stdout
    collected = emblema("store", "gc", "--store", str(other), "--json")
    assert json.loads(collected.stdout)["quarantined"] == 1


def test_pins_and_deletion(filled: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    emblema("store", "export", "--store", str(filled), "--out", str(out))
    with Engine.load("reference", store=other):
        pass
    emblema("store", "import", "--store", str(other), str(out))
    chunk = str(listed(other, "--kind", "chunk")[0]["id"])
    assert emblema("store", "pin", chunk[:16], "--store", str(other)).returncode == 0
    assert [one["id"] for one in listed(other) if one["terms"]["pinned"]] == [chunk]  # type: ignore[index]
    file = str(out / f"{chunk}.safetensors")
    assert told("import", "--store", str(other), file)["kept"] == [chunk], "what is here and whole stays"
    assert told("import", "--store", str(other), "--replace", file)["taken"] == [chunk]
    assert [one["id"] for one in listed(other) if one["terms"]["pinned"]] == [chunk]  # type: ignore[index]
    assert emblema("store", "unpin", chunk, "--store", str(other)).returncode == 0
    assert not any(one["terms"]["pinned"] for one in listed(other))  # type: ignore[index]
    patches = json.loads(emblema("store", "show", chunk, "--store", str(other), "--json").stdout)["patches"]
    assert emblema("store", "rm", chunk, "--store", str(other)).returncode == 0
    left = {one["id"] for one in listed(other)}
    assert patches and not left & {chunk, *patches} and len(left) == 5 - 1 - len(patches)


def told(*arguments: str, code: int = 0) -> Any:
    """What a command prints as JSON, and nothing else."""
    done = emblema("store", *arguments, "--json")
    assert done.returncode == code and done.stderr == "", done.stderr
    return json.loads(done.stdout)


def test_what_was_done_is_told_as_json(filled: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    ids = {str(one["id"]) for one in listed(filled)}
    assert set(told("export", "--store", str(filled), "--out", str(out))) == ids
    with Engine.load("reference", store=other):
        pass
    damaged = out / f"{min(ids)}.safetensors"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1])
    came = told("import", "--store", str(other), str(out), code=1)
    assert set(came["taken"]) == ids - {min(ids)} and list(came["refused"]) == [str(damaged)]
    damaged.write_bytes(whole)
    assert told("import", "--store", str(other), str(damaged)) == {
        "taken": [min(ids)],
        "kept": [],
        "refused": {},
    }
    chunk = str(listed(other, "--kind", "chunk")[0]["id"])
    assert told("pin", "--store", str(other), chunk[:16]) == [chunk]
    assert told("unpin", "--store", str(other), chunk) == [chunk]
    assert told("unpin", "--store", str(other), chunk) == [chunk], "it is not pinned, whatever it was before"
    patches = told("show", "--store", str(other), chunk)["patches"]
    gone = told("rm", "--store", str(other), chunk, patches[0])
    assert len(gone) == len(set(gone)) and set(gone) == {chunk, *patches}
    assert {str(one["id"]) for one in listed(other)} == ids - set(gone)


def test_ls_says_that_opening_a_store_checks_it() -> None:
    help = " ".join(emblema("store", "ls", "--help").stdout.replace("│", " ").split())
    assert "checks it against its files" in help


def test_refusals_are_one_line(filled: Path, tmp_path: Path) -> None:
    assert "no such folder" in refused("store", "ls", "--store", str(tmp_path / "nothing"))
    assert "no store" in refused("store", "ls", "--store", str(tmp_path))
    assert "no piece" in refused("store", "rm", "", "--store", str(filled))
    assert "no piece" in refused("store", "show", "0" * 64, "--store", str(filled))
    assert "choose chunk or patch" in refused("store", "ls", "--kind", "page", "--store", str(filled))
    assert "neither a file nor a folder" in refused("store", "import", "--store", str(filled), str(tmp_path / "none"))
    assert len(listed(filled)) == 5
