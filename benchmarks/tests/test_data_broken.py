"""Bad data sets: one clear error with the file and the line, whatever is wrong, and no file outside the folder."""

from __future__ import annotations

import copy
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data.forms import load_items
from benchmarks.data.records import DataError, DataLimits
from benchmarks.tests.data_sets import MAKERS, document, lines, milebench, mm_niah, mmdu, musique, own, picture
from emblema.errors import EmblemaError

NEEDED: dict[str, tuple[str, ...]] = {
    "mm-niah": ("id", "images_list", "context", "question", "answer", "meta"),
    "muirbench": ("question", "options", "answer", "image_list"),
    "milebench": ("sample_id", "task_instruction_id", "task_instance", "response"),
    "video-mme": ("video_id", "questions"),
    "egoschema": ("q_uid", "option 0", "option 4"),
    "mmdu": ("id", "image", "conversations"),
    "sparkleseval": ("evaluation_id", "dialogue"),
    "musique": ("id", "paragraphs", "question", "answer"),
    "emblema": ("id", "task", "parts", "questions"),
}
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    7,
    0.5,
    "",
    "x",
    "\0",
    "\ud800",
    "../x",
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    "9" * 400,
)


def rewrite(file: Path, value: Any) -> None:
    """Write parsed records back in the file's way."""
    if file.suffix == ".jsonl":
        lines(file, *value)
    else:
        document(file, value)


def parsed(file: Path) -> Any:
    text = file.read_text()
    return [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else json.loads(text)


def records_of(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return value
    return value["data"] if "data" in value else list(value.values())


def place_of(file: Path, number: int) -> int:
    """The line on which a record begins."""
    if file.suffix == ".jsonl":
        return number + 1
    text = file.read_text()
    indent = 4 if '"data": [' in text else 2
    begins = re.compile(rf' {{{indent}}}("\d+": )?\{{')
    return [place for place, line in enumerate(text.splitlines(), start=1) if begins.fullmatch(line)][number]


@pytest.mark.parametrize(("form", "field"), [(form, field) for form, fields in NEEDED.items() for field in fields])
def test_a_missing_field_is_named_with_file_and_line(form: str, field: str, tmp_path: Path) -> None:
    file = MAKERS[form](tmp_path)
    value = parsed(file)
    records = records_of(value)
    del records[-1][field]
    rewrite(file, value)
    with pytest.raises(EmblemaError) as caught:
        list(load_items(file, form))
    wanted = "question_id" if field == "questions" and form == "video-mme" else field
    assert f"missing {wanted!r}" in str(caught.value)
    assert str(caught.value).startswith(f"{file}, line {place_of(file, len(records) - 1)}: ")


@pytest.mark.parametrize("form", MAKERS)
def test_broken_json_is_named_with_file_and_line(form: str, tmp_path: Path) -> None:
    file = MAKERS[form](tmp_path)
    text = file.read_text()
    file.write_text(text[: text.rstrip().rfind("}")])
    count = len(file.read_text().splitlines())
    with pytest.raises(DataError, match="broken JSON: ") as caught:
        list(load_items(file, form))
    assert str(file) in str(caught.value)
    assert caught.value.place in (count, count + 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: broken JSON: expected a list or an object at column 1"),
        ("[", "line 1: broken JSON"),
        ("3", "line 1: broken JSON: expected a list or an object"),
        ("[1]", "line 1: a record is 1, not an object"),
        ("[]", "it holds no items of MMDU"),
        ("{}", "it holds no items of MMDU"),
        ('\n[{"id": 1},\n]', "line 3: broken JSON: expecting value"),
        ('[{"id": NaN}]', "line 1: broken JSON: NaN is no JSON"),
        ('{"a": {}}', "line 1: missing 'id', 'image', 'conversations'"),
        ('{"a": {}} x', "line 1: broken JSON: extra data at column 11"),
        ("[" * 100_000, "nested too deeply"),
        ('[{"id": ' + "1" * 5000 + "}]", "line 1: broken JSON"),
    ],
)
def test_documents_that_are_none(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "benchmark.json"
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        list(load_items(file, "mmdu"))
    assert message in str(caught.value)


def test_what_follows_a_document_is_refused(tmp_path: Path) -> None:
    file = mmdu(tmp_path)
    file.write_text(file.read_text() + "\n[]")
    with pytest.raises(DataError, match="broken JSON: extra data"):
        list(load_items(file, "mmdu"))


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_bytes_that_are_no_text(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"file{suffix}"
    file.write_bytes(b'{"a": 1}\n{"a": "\xff"}' if suffix == ".jsonl" else b'[\n"\xff"]')
    with pytest.raises(DataError, match=r"line [12]: (it is not UTF-8|broken JSON: .*utf-8|missing)"):
        list(load_items(file, "mmdu" if suffix == ".json" else "musique"))


def test_a_file_with_a_byte_order_mark_and_empty_lines_is_read(tmp_path: Path) -> None:
    file = musique(tmp_path)
    file.write_text("\ufeff" + file.read_text() + "\n\n")
    assert len(list(load_items(file, "musique"))) == 1


@pytest.mark.parametrize(
    "name",
    ["../secret.png", "/etc/hosts", "images/../../secret.png", "C:\\secret.png", "..\\secret.png", "\\\\host\\x.png"],
)
def test_names_that_lead_out_of_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    picture(tmp_path / "secret.png")
    file = own(tmp_path / "set")
    (record,) = parsed(file)
    record["parts"][0]["file"] = name
    rewrite(file, [record])
    with pytest.raises(DataError, match=r"items\.jsonl, line 1: parts\[0\]: .* does not name a file inside"):
        list(load_items(file, "emblema"))


def test_links_out_of_the_folder_are_refused_and_a_hub_cache_is_not(tmp_path: Path) -> None:
    picture(tmp_path / "secret.png")
    file = own(tmp_path / "set")
    (tmp_path / "set/media/a.png").unlink()
    (tmp_path / "set/media/a.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match=r"line 1: parts\[0\]: 'media/a.png' is a link out of"):
        list(load_items(file, "emblema"))
    home = tmp_path / "datasets--some--set"
    cached = own(home / "snapshots" / "0123")
    (home / "blobs").mkdir()
    (home / "snapshots/0123/media/a.png").rename(home / "blobs/abc")
    (home / "snapshots/0123/media/a.png").symlink_to("../../../blobs/abc")
    assert len(list(load_items(cached, "emblema"))) == 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = milebench(tmp_path)
    (tmp_path / "images" / "2.jpg").unlink()
    with pytest.raises(DataError, match=r"ActionSequence\.json, line 9: there is no file '2\.jpg' in "):
        list(load_items(file, "milebench"))
    with pytest.raises(DataError, match="nothing.jsonl: there is no such file"):
        list(load_items(tmp_path / "nothing.jsonl", "mm-niah"))
    with pytest.raises(DataError, match=r"its name ends in \.csv: give one of \.jsonl, \.json, \.parquet"):
        (tmp_path / "set.csv").write_text("a,b")
        list(load_items(tmp_path / "set.csv", "mm-niah"))


def test_a_folder_without_one_file_of_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"one file of records is needed for EgoSchema; it has none like questions\.json"
    ):
        load_items(tmp_path, "egoschema")
    lines(tmp_path / "annotations/a.jsonl", {})
    lines(tmp_path / "annotations/b.jsonl", {})
    with pytest.raises(DataError, match=r"it has a\.jsonl, b\.jsonl"):
        load_items(tmp_path, "mm-niah")


@pytest.mark.parametrize(
    ("form", "path", "value", "message"),
    [
        ("mm-niah", ("context",), "no place", "2 more pictures than places '<image>'"),
        ("mm-niah", ("context",), "<image>" * 3, "more places '<image>' than pictures"),
        ("mm-niah", ("answer",), 2, "the answer 2 is none of the 2 options"),
        ("muirbench", ("answer",), "E", "the answer 'E' is none of the 3 options"),
        ("milebench", ("task_instance", "context"), "{image#4}?", "the context names picture 4; there are 3"),
        ("milebench", ("task_instruction_id",), 3, "there is no task instruction 3 in 'meta_data'"),
        ("milebench", ("response",), "flew", "the answer 'flew' is none of the 3 options"),
        ("video-mme", ("questions", 0, "options"), "A. x", r"questions[0]: 'options' is 'A. x', not a list of strings"),
        ("video-mme", ("questions",), [], "'questions' is empty"),
        ("video-mme", ("video_id",), "002", "there is no file '002.mp4'"),
        ("mmdu", ("conversations", 1, "from"), "gpt", "conversations[1]: it is from 'gpt'; here stands one from"),
        ("mmdu", ("conversations",), [], "'conversations' has 0 messages"),
        ("sparkleseval", ("dialogue", 2, "images"), [], "dialogue[2]: more places '<Img><ImageHere></Img>' than"),
        ("sparkleseval", ("dialogue", 0, "images", 0, "image_id"), True, "'image_id' is True, not a string"),
        ("musique", ("paragraphs", 0, "is_supporting"), "yes", "'is_supporting' is 'yes', not true or false"),
        ("musique", ("question_decomposition", 1, "question"), "#3 in", "it names the answer of hop 3; there are 2"),
        ("emblema", ("parts", 0, "slides"), 2, "parts[0]: 'slides' is 2, not a share from 0 to 1"),
        ("emblema", ("parts", 0, "kind"), "smell", "parts[0]: 'kind' is 'smell': use one of image, video"),
        ("emblema", ("questions", 0, "correct"), 2, "questions[0]: 'correct' is 2; there are 2 options"),
    ],
)
def test_what_does_not_fit_together(form: str, path: tuple[Any, ...], value: Any, message: str, tmp_path: Path) -> None:
    file = MAKERS[form](tmp_path)
    whole = parsed(file)
    spot: Any = records_of(whole)[0]
    for step in path[:-1]:
        spot = spot[step]
    spot[path[-1]] = value
    rewrite(file, whole)
    with pytest.raises(DataError) as caught:
        list(load_items(file, form))
    assert message in str(caught.value)
    assert f"{file}, line {place_of(file, 0)}: " in str(caught.value)


def test_notes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = mmdu(tmp_path)
    whole = parsed(file)
    notes = {"task": "t", "item": "i", "slides": [1, 0, 0], "questions": [{}, {}]}
    for change, message in (
        ({"slides": [1]}, "emblema: it notes other media or questions than the record has"),
        ({"slides": [1, 0, 7]}, "emblema: 'slides' is [1, 0, 7], not shares from 0 to 1"),
        ({"questions": [{"multi_hop": 3}, {}]}, "emblema.questions[0]: 'multi_hop' is 3, not true or false"),
    ):
        whole["0"]["emblema"] = notes | change
        rewrite(file, whole)
        with pytest.raises(DataError) as caught:
            list(load_items(file, "mmdu"))
        assert message in str(caught.value)


def test_limits_hold(tmp_path: Path) -> None:
    file = mm_niah(tmp_path)
    for limits, message in (
        (DataLimits(records=1), "line 2: more than 1 records"),
        (DataLimits(line_bytes=100), "line 1: longer than 100 bytes"),
        (DataLimits(file_bytes=100), "beyond the limit"),
        (DataLimits(media=1), "larger than the limit of text or pictures"),
        (DataLimits(characters=10), "larger than the limit of text or pictures"),
    ):
        with pytest.raises(DataError) as caught:
            list(load_items(file, "mm-niah", limits=limits))
        assert message in str(caught.value)
    with pytest.raises(DataError, match="beyond the limit"):
        list(load_items(milebench(tmp_path / "b"), "milebench", limits=DataLimits(document_bytes=100)))


def test_parquet_without_pyarrow_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "test.parquet"
    file.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="reading parquet needs pyarrow: pip install pyarrow"):
        list(load_items(file, "muirbench"))


def test_broken_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "test.parquet"
    file.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match=r"test\.parquet: it cannot be read as parquet"):
        list(load_items(file, "muirbench"))
    row = {"question": "<image> which ?", "options": ["a", "b"], "answer": "A", "image_list": [{"bytes": b"x" * 99}]}
    parquet.write_table(pyarrow.Table.from_pylist([row, row | {"answer": "C"}]), file)
    with pytest.raises(DataError, match=r"test\.parquet, row 2: the answer 'C' is none of the 2 options"):
        list(load_items(file, "muirbench"))
    with pytest.raises(DataError, match="row 1: a picture of 99 bytes is beyond the limit"):
        list(load_items(file, "muirbench", limits=DataLimits(cell_bytes=50)))


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value below a value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, below in pairs:
        yield (*path, step)
        yield from spots(below, (*path, step))


@pytest.mark.parametrize("form", MAKERS)
def test_any_odd_value_anywhere_is_items_or_one_clear_error(form: str, tmp_path: Path) -> None:
    file = MAKERS[form](tmp_path)
    whole = parsed(file)
    for turn, path in enumerate(spots(whole)):
        for odd in ODD[turn % 3 :: 3]:
            changed = copy.deepcopy(whole)
            spot = changed
            for step in path[:-1]:
                spot = spot[step]
            spot[path[-1]] = odd
            file.write_text("\n".join(map(json.dumps, changed)) if file.suffix == ".jsonl" else json.dumps(changed))
            accepted_or_refused(file, form)


@pytest.mark.parametrize("form", MAKERS)
def test_any_damage_to_the_bytes_is_items_or_one_clear_error(form: str, tmp_path: Path) -> None:
    file = MAKERS[form](tmp_path)
    whole = file.read_bytes()
    draw = random.Random(0)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(data))
            data[place : place + draw.randint(0, 4)] = draw.randbytes(draw.randint(0, 3))
        file.write_bytes(data)
        accepted_or_refused(file, form)


def accepted_or_refused(file: Path, form: str) -> None:
    try:
        items = list(load_items(file, form))
    except DataError as error:
        assert str(error).startswith(str(file.parent))
        assert str(error).encode() and "\n" not in str(error)
        assert len(str(error)) < 600
    else:
        assert all(item.questions for item in items)
