"""Data sets: a small file of each form is read right; whatever is wrong with a file is one clear error."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data.forms import FORMS, load_items
from benchmarks.data.records import DataError, DataLimits
from benchmarks.tasks.items import Media, Part, describe
from benchmarks.tasks.registry import TASKS
from benchmarks.tests.data_sets import SETS, make, write
from benchmarks.tests.data_writers import write_items
from emblema.errors import PromptError


def shown(parts: tuple[Part, ...]) -> str:
    """Text and media in one line: a file by its name, with the share that slides."""
    return "|".join(
        f"[{each.content.name if isinstance(each.content, Path) else str(each.content)} {each.slides}]"
        if isinstance(each, Media)
        else each
        for each in parts
    )


READ: dict[str, list[tuple[str, str, str, list[tuple[str, str, str, int]]]]] = {
    "mm-niah": [
        ("0", "retrieval-image", "One.|[1.jpg 1.0]|Two.|[2.jpg 0.0]|\nThree.",
         [("Which?", "B", "[3.png 0.0]|[4.png 0.0]", 1), ("What?", "oak", "oak|elm", 0)]),
        ("2", "retrieval-image", "No.", [("[2.jpg 0.0]|?", "[1]", "", -1)]),
    ],
    "muirbench": [
        ("10", "Geographic", "[a.png 1.0]|[b.png 0.0]", [("North?", "right", "left|right", 1)]),
        ("9", "Geographic", "[a.png 0.0]", [("Like?", "B", "none|[b.png 0.0]", 1)]),
    ],
    "milebench": [("ActionSequence-0", "ActionSequence", "[0.jpg 1.0]|[1.jpg 0.0]", [("After?", "ran", "sat|ran", 1)])],
    "video-mme": [
        ("001", "video-mme", "[x1.mp4 0.5]",
         [("First?", "the boat.", "the boat.|U.S. flags", 0), ("First?", "U.S. flags", "the boat.|U.S. flags", 1)]),
    ],
    "egoschema": [
        (name, "egoschema", f"[{name}.mp4 0.5]",
         [("Which of the following describes the video?", answer, "|".join(f"C does {n}." for n in range(5)), correct)])
        for name, answer, correct in (("u1", "C does 3.", 3), ("u2", "", -1))
    ],
    "mmdu": [
        ("7", "mmdu", "", [("[a.jpg 1.0]|[b.jpg 1.0]|Describe both.", "Two squares.", "", -1),
                           ("And this?|[c.jpg 0.0]", "A third.", "", -1)]),
    ],
    "sparkleseval": [
        ("3", "sparkleseval", "", [("Link IMAGE#14|[14.jpg 1.0]| and IMAGE#17|[17.jpg 0.0]|.", "Red.", "", -1)]),
    ],
    "musique": [
        ("2hop", "musique", "[Ada\nAda was born in Lund. 1.0]|[Lund\nLund is in Skåne. 0.0]",
         [("Where?", "Skåne", "", -1), ("Ada >> born in", "Lund", "", -1), ("Lund >> lies in", "Skåne", "", -1)]),
    ],
    "emblema": [("i", "mine", "[a.png 1.0]|[a map 0.0]|look :", [("what ?", "a", "a|b", 0)])],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_small_set_of_each_form_is_read_right(form: str, tmp_path: Path) -> None:
    file = make(form, tmp_path)
    items = list(load_items(file, form))
    assert [
        (item.id, item.task, shown(item.parts),
         [(shown(q.parts), q.answer, shown(q.options), q.correct) for q in item.questions])
        for item in items
    ] == READ[form]  # fmt: skip
    assert {item.form for item in items} == {form}
    assert {item.dialogue for item in items} == {form in ("mmdu", "sparkleseval")}
    assert {item.instruction for item in items} == {"Watch and choose." if form == "milebench" else ""}
    if form == "muirbench":
        assert [item.episode for item in items] == ["10", "9"]
    if form == "musique":
        assert [q.multi_hop for q in items[0].questions] == [True, False, False]
        assert items[0].questions[0].aliases == ("Scania",)
    assert list(load_items(tmp_path, form)) == items


@pytest.mark.parametrize("task", ["album-binding", "dialogue-word", "text-two-hop", "video-choice"])
def test_the_own_form_holds_everything(task: str, tmp_path: Path) -> None:
    drawn = [replace(item, form="emblema") for item in TASKS[task].items(29, 2)]
    read = load_items(write_items(drawn, "emblema", tmp_path), "emblema")
    assert [describe(item) for item in read] == [describe(item) for item in drawn]


def test_parquet_as_on_the_hub(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "data" / "test.parquet"
    file.parent.mkdir()
    file.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match=r"test\.parquet: it cannot be read as parquet"):
        list(load_items(file, "muirbench"))
    row = {"idx": "1", "question": "<image>Which?", "options": ["a", "b"], "answer": "A",
           "image_list": [{"bytes": b"x" * 99}]}  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    (item,) = load_items(tmp_path, "muirbench")
    assert (item.media[0].content, item.questions[0].answer) == (b"x" * 99, "a")
    parquet.write_table(pyarrow.Table.from_pylist([row, row | {"answer": "C"}]), file)
    with pytest.raises(DataError, match=r"test\.parquet, row 2: the answer 'C' is none of the 2 options"):
        list(load_items(file, "muirbench"))
    with pytest.raises(DataError, match="row 1: a picture of 99 bytes is beyond the limit"):
        list(load_items(file, "muirbench", limits=DataLimits(cell_bytes=50)))


def test_parquet_without_pyarrow_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "test.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="reading parquet needs pyarrow: pip install pyarrow"):
        list(load_items(tmp_path / "test.parquet", "muirbench"))


GONE = object()
WRONG: list[tuple[str, tuple[Any, ...], Any, str]] = [
    *(("mm-niah", (0, field), GONE, f"jsonl, line 1: missing '{field}'; correct the record or leave it out")
      for field in ("id", "images_list", "context", "question", "answer", "meta")),
    ("mm-niah", (0, "context"), "no place", "line 1: 2 more pictures than places '<image>'"),
    ("mm-niah", (1, "context"), "<image>" * 3, "line 2: more places '<image>' than pictures"),
    ("mm-niah", (0, "answer"), 2, "line 1: the answer 2 is none of the 2 options"),
    ("muirbench", (0, "answer"), "E", "the answer 'E' is none of the 2 options"),
    ("muirbench", (0, "options"), GONE, "line 1: missing 'options'"),
    ("milebench", ("meta_data",), GONE, "ActionSequence.json: missing 'meta_data'"),
    ("milebench", ("data", 0, "response"), GONE, "data[0]: missing 'response'"),
    ("milebench", ("data", 0, "response"), "flew", "data[0]: the answer 'flew' is none of the 2 options"),
    ("milebench", ("data", 0, "task_instruction_id"), 3, "data[0]: there is no task instruction 3 in 'meta_data'"),
    ("milebench", ("data", 0, "task_instance", "context"), "{image#4}", "the context names picture 4; there are 2"),
    ("video-mme", (0, "options"), "A. x", "line 1: 'options' is 'A. x', not a list of strings"),
    ("video-mme", (1, "videoID"), "002", "line 2: there is no file '002.mp4'"),
    ("egoschema", (1, "option 4"), GONE, "questions.json, record 2: missing 'option 4'"),
    ("mmdu", ("0", "conversations", 1, "from"), "gpt", "record 1, conversations[1]: it is from 'gpt'; here stands"),
    ("mmdu", ("0", "conversations"), [], "record 1: 'conversations' has 0 messages"),
    ("sparkleseval", (0, "dialogue", 0, "images"), [], "dialogue[0]: more places '<Img><ImageHere></Img>' than"),
    ("musique", (0, "paragraphs", 0, "is_supporting"), "yes", "'is_supporting' is 'yes', not true or false"),
    ("musique", (0, "question_decomposition", 1, "question"), "#3 in", "the answer of hop 3; there are 2"),
    ("emblema", (0, "parts", 0, "slides"), 2, "line 1, parts[0]: 'slides' is 2, not a share from 0 to 1"),
    ("emblema", (0, "parts", 0, "kind"), "smell", "parts[0]: 'kind' is 'smell': use one of image, video"),
    ("emblema", (0, "questions", 0, "correct"), 2, "questions[0]: 'correct' is 2; there are 2 options"),
    *(("emblema", (0, "parts", 0, "file"), name, "line 1, parts[0]: ") for name in (
        "../secret.png", "/etc/hosts", "media/../../secret.png", "C:\\secret.png", "..\\secret.png", "\\\\host\\x.png",
    )),
]  # fmt: skip


@pytest.mark.parametrize(("form", "path", "value", "message"), WRONG)
def test_a_wrong_record_is_named(form: str, path: tuple[Any, ...], value: Any, message: str, tmp_path: Path) -> None:
    file = make(form, tmp_path / "set")
    (tmp_path / "secret.png").write_bytes(b"secret")
    write(file, changed(SETS[form][1], path, value))
    with pytest.raises(DataError) as caught:
        list(load_items(file, form))
    assert str(caught.value).startswith(str(file)) and message in str(caught.value)
    assert path[-1] != "file" or "does not name a file inside" in str(caught.value)


def changed(whole: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with one value changed, or taken out."""
    held = copy.deepcopy(whole)
    spot = held
    for step in path[:-1]:
        spot = spot[step]
    if value is GONE:
        del spot[path[-1]]
    else:
        spot[path[-1]] = value
    return held


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", b"", "a.json, line 1: broken JSON: expecting value at column 1"),
        ("a.json", b"3", "a.json: it holds neither a list nor an object"),
        ("a.json", b"[1]", "record 1: it is 1, not an object with fields"),
        ("a.json", b"[]", "it holds no items of MMDU"),
        ("a.json", b'\n[{"id": 1},\n]', "line 2: broken JSON: illegal trailing comma|line 3: broken JSON"),
        ("a.json", b'[{"id": NaN}]', "broken JSON: NaN is no JSON"),
        ("a.json", b'{"a": {}} x', "line 1: broken JSON: extra data at column 11"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.json", b'[{"id": ' + b"1" * 5000 + b"}]", "a.json: broken JSON"),
        ("a.json", b'[\n"\xff"]', "line 2: it is not UTF-8"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}', "line 1: missing 'image'"),
        ("a.jsonl", b'\n{"a"', "line 2: broken JSON: expecting ':' delimiter at column 5"),
        ("a.csv", b"a,b", r"its name ends in \.csv: give one of \.jsonl, \.json, \.parquet"),
    ],
)
def test_a_file_that_is_none_is_named(name: str, text: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(DataError, match=message):
        list(load_items(tmp_path / name, "mmdu"))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="unknown form 'coco'"):
        load_items(tmp_path, "coco")
    with pytest.raises(DataError, match="nothing.jsonl: there is no such file"):
        list(load_items(tmp_path / "nothing.jsonl", "mm-niah"))
    with pytest.raises(DataError, match=r"is needed for EgoSchema; it has none like questions\.json"):
        load_items(tmp_path, "egoschema")
    write(tmp_path / "annotations/a.jsonl", [])
    write(tmp_path / "annotations/b.jsonl", [])
    with pytest.raises(DataError, match=r"it has a\.jsonl, b\.jsonl"):
        load_items(tmp_path, "mm-niah")


def test_links_out_of_the_folder_are_refused_and_a_hub_cache_is_not(tmp_path: Path) -> None:
    file = make("emblema", tmp_path / "set")
    (tmp_path / "set/media/a.png").rename(tmp_path / "secret.png")
    (tmp_path / "set/media/a.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match=r"line 1, parts\[0\]: 'media/a.png' is a link out of"):
        list(load_items(file, "emblema"))
    home = tmp_path / "datasets--some--set"
    cached = make("emblema", home / "snapshots" / "0123")
    (home / "blobs").mkdir()
    (home / "snapshots/0123/media/a.png").rename(home / "blobs/abc")
    (home / "snapshots/0123/media/a.png").symlink_to("../../../blobs/abc")
    assert len(list(load_items(cached, "emblema"))) == 1


@pytest.mark.parametrize(
    ("form", "limits", "message"),
    [
        ("mm-niah", DataLimits(records=1), "line 2: more than 1 records"),
        ("mm-niah", DataLimits(line_bytes=100), "line 1: longer than 100 bytes"),
        ("mm-niah", DataLimits(file_bytes=100), "beyond the limit of 100"),
        ("mm-niah", DataLimits(media=1), "larger than the limit of text or pictures"),
        ("mm-niah", DataLimits(characters=10), "larger than the limit of text or pictures"),
        ("milebench", DataLimits(document_bytes=100), "beyond the limit of 100"),
    ],
)
def test_limits_hold(form: str, limits: DataLimits, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        list(load_items(make(form, tmp_path), form, limits=limits))


ODD: tuple[Any, ...] = (
    *(None, True, -1, 7, 0.5, "", "x", "\0", "\ud800", "../x", "9" * 400),
    *([], {}, [[]], [None], {"a": 1}),
)


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value below a value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, below in pairs:
        yield (*path, step)
        yield from spots(below, (*path, step))


@pytest.mark.parametrize("form", FORMS)
def test_any_damage_is_items_or_one_clear_error(form: str, tmp_path: Path) -> None:
    file, draw = make(form, tmp_path), random.Random(0)
    whole = file.read_bytes()
    damaged = [
        write(file, changed(SETS[form][1], path, odd)).read_bytes()
        for turn, path in enumerate(spots(SETS[form][1]))
        for odd in ODD[turn % 3 :: 3]
    ]
    for _ in range(150):
        data = bytearray(whole)
        place = draw.randrange(len(data))
        data[place : place + draw.randint(0, 4)] = draw.randbytes(draw.randint(0, 3))
        damaged.append(bytes(data))
    refused = 0
    for each in damaged:
        file.write_bytes(each)
        try:
            assert all(item.questions for item in load_items(file, form))
        except DataError as error:
            refused += 1
            assert str(error).startswith(str(tmp_path)) and str(error).encode() and "\n" not in str(error)
            assert len(str(error)) < 600
    assert 0 < refused < len(damaged)
