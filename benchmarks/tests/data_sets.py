"""A small data set of each form, with the fields that the real ones have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_NIAH = {"images_list": ["a/1.jpg", "2.jpg"], "context": "One.<image>Two.<image>\nThree."}
_MUIR = {"task": "Geographic", "image_list": ["images/a.png", "images/b.png"], "answer": "B"}
_MILE = {"context": "{image#1}{table#2}After?", "images_path": ["0.jpg", "1.jpg"], "choice_list": ["sat", "ran"]}
_TALK = [
    {"from": "user", "value": "<ImageHere><ImageHere>Describe both."},
    {"from": "assistant", "value": "Two squares."},
    {"from": "user", "value": "And this?<ImageHere>"},
    {"from": "assistant", "value": "A third."},
]
_MARK = "<Img><ImageHere></Img>"
_HOPS = [{"question": "Ada >> born in", "answer": "Lund"}, {"question": "#1 >> lies in", "answer": "Skåne"}]
_PARAGRAPHS = [
    {"title": "Ada", "paragraph_text": "Ada was born in Lund.", "is_supporting": True},
    {"title": "Bob", "paragraph_text": "Bob was not.", "is_supporting": False},
    {"title": "Lund", "paragraph_text": "Lund is in Skåne.", "is_supporting": True},
]
_OWN = [{"kind": "image", "file": "media/a.png", "slides": 1}, {"kind": "text", "text": "a map"}, "look :"]

SETS: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "mm-niah": (
        "annotations/retrieval-image.jsonl",
        [
            {"id": 0, **_NIAH, "question": "Which?", "answer": 1, "meta": {"choices_image_path": ["3.png", "4.png"]}},
            {"id": 1, **_NIAH, "question": "What?", "answer": 0, "meta": {"choices": ["oak", "elm"]}},
            {"id": 2, "images_list": ["2.jpg"], "context": "No.", "question": "<image>?", "answer": [1], "meta": {}},
        ],
        ("images/a/1.jpg", "images/2.jpg", "images/3.png", "images/4.png"),
    ),
    "muirbench": (
        "muirbench.jsonl",
        [
            {"idx": "10", **_MUIR, "question": "<image><image>North?", "options": ["left", "right"]},
            {"idx": "9", **_MUIR, "question": "<image>Like?", "options": ["none", "<image>"], "counterpart_idx": "10"},
        ],
        ("images/a.png", "images/b.png"),
    ),
    "milebench": (
        "ActionSequence.json",
        {
            "meta_data": {"task_instruction": ["Watch and choose."]},
            "data": [{"sample_id": 0, "task_instruction_id": 0, "task_instance": _MILE, "response": "ran"}],
        },
        ("images/0.jpg", "images/1.jpg"),
    ),
    "video-mme": (
        "rows.jsonl",
        [
            {"video_id": "001", "videoID": "x1", "question_id": f"001-{number}", "task_type": "Temporal",
             "question": "First?", "options": ["A. the boat.", "B. U.S. flags"], "answer": letter}
            for number, letter in enumerate("AB")
        ],
        ("data/x1.mp4",),
    ),
    "egoschema": (
        "questions.json",
        [{"q_uid": name, **{f"option {number}": f"C does {number}." for number in range(5)}} for name in ("u1", "u2")],
        ("videos/u1.mp4", "videos/u2.mp4"),
    ),
    "mmdu": (
        "benchmark.json",
        {"0": {"id": 7, "image": ["images/a.jpg", "./images/b.jpg", "c.jpg"], "conversations": _TALK}},
        ("images/a.jpg", "images/b.jpg", "images/c.jpg"),
    ),
    "sparkleseval": (
        "annotations/sparkles_evaluation_sparkleseval_annotations.json",
        [
            {"evaluation_id": 3, "dialogue": [
                {"content": f"Link IMAGE#14{_MARK} and IMAGE#17{_MARK}.",
                 "images": [{"image_id": 14}, {"image_id": 17}]},
                {"content": "Red."},
            ]}
        ],
        ("images/14.jpg", "images/17.jpg"),
    ),
    "musique": (
        "musique.jsonl",
        [{"id": "2hop", "paragraphs": _PARAGRAPHS, "question": "Where?", "question_decomposition": _HOPS,
          "answer": "Skåne", "answer_aliases": ["Scania"]}],
        (),
    ),
    "emblema": (
        "items.jsonl",
        [{"id": "i", "task": "mine", "parts": _OWN, "questions": [
            {"id": "q", "parts": ["what ?"], "answer": "a", "options": ["a", "b"], "correct": 0}]}],
        ("media/a.png",),
    ),
}  # fmt: skip


def write(file: Path, value: Any) -> Path:
    """Write records as the file's name asks for: a JSON document, or a line each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(each) + "\n" for each in value] if file.suffix == ".jsonl" else [json.dumps(value)]
    file.write_text("".join(lines))
    return file


def make(form: str, root: Path) -> Path:
    """Write the data set of a form below a folder; returns its file of records. Its media are never decoded."""
    name, value, media = SETS[form]
    for each in media:
        (root / each).parent.mkdir(parents=True, exist_ok=True)
        (root / each).write_bytes(b"media")
    if form == "egoschema":
        write(root / "subset_answers.json", {"u1": 3})
    return write(root / name, value)
