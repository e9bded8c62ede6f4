"""Small data sets written by hand, with the fields that the real ones have and nothing of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

Maker = Callable[[Path], Path]


def picture(path: Path, colour: str = "red") -> None:
    """A small picture of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32), colour).save(path)


def lines(path: Path, *values: Any) -> Path:
    """A jsonl file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def document(path: Path, value: Any) -> Path:
    """A JSON document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2))
    return path


def mm_niah(root: Path) -> Path:
    """Three records on two documents: choices as texts, choices as pictures, a counting list."""
    for name in ("a/1.jpg", "a/2.jpg", "c/1.png", "c/2.png"):
        picture(root / "images" / name)
    meta = {"placed_depth": [0.5], "context_length": 900, "num_images": 2, "needles": ["x"], "choices": None}
    shared = {"images_list": ["a/1.jpg", "a/2.jpg"], "context": "One.<image>Two.<image>\nThree."}
    return lines(
        root / "annotations" / "retrieval-image.jsonl",
        {
            "id": 0,
            **shared,
            "question": "Which one is there?",
            "answer": 1,
            "meta": {**meta, "choices_image_path": ["c/1.png", "c/2.png"]},
        },
        {
            "id": 1,
            **shared,
            "question": "What was it?",
            "answer": 0,
            "meta": {**meta, "choices": ["oak", "elm"], "choices_image_path": None},
        },
        {
            "id": 2,
            "images_list": ["a/1.jpg"],
            "context": "Nothing.",
            "question": "<image>How many?",
            "answer": [1, 0],
            "meta": meta,
        },
    )


def muirbench(root: Path) -> Path:
    """A question, its unanswerable twin, and one whose options are pictures."""
    for name in "ab":
        picture(root / "images" / f"{name}.png", {"a": "red", "b": "blue"}[name])
    shared = {"task": "Geographic Understanding", "image_relation": "Complementary", "image_type": "Map"}
    images = ["images/a.png", "images/b.png"]
    return lines(
        root / "muirbench.jsonl",
        {
            "idx": "10",
            **shared,
            "question": "<image> <image> Which is north?",
            "options": ["left", "right", "None of the choices provided"],
            "answer": "B",
            "image_list": images,
            "counterpart_idx": "9",
        },
        {
            "idx": "9",
            **shared,
            "question": "<image> Which is like it?",
            "options": ["<image>", "none"],
            "answer": "A",
            "image_list": images,
            "counterpart_idx": "10",
        },
    )


def milebench(root: Path) -> Path:
    """A question with choices and one without."""
    for number in range(3):
        picture(root / "images" / f"{number}.jpg")
    instance = {
        "context": "{image#1}{image#2}{image#3}What happened after?",
        "images_path": ["0.jpg", "1.jpg", "2.jpg"],
    }
    shared = {"task_instruction_id": 0, "image_quantity_level": "Few"}
    data = [
        {
            "sample_id": 0,
            **shared,
            "task_instance": {**instance, "choice_list": ["sat", "stood", "ran"]},
            "response": "stood",
        },
        {"sample_id": 1, **shared, "task_instance": {**instance, "context": "{table#2}Why?"}, "response": "because"},
    ]
    meta = {"dataset": "ActionSequence", "task_instruction": ["Watch the frames and choose."]}
    return document(root / "ActionSequence.json", {"meta_data": meta, "data": data})


def video_mme(root: Path) -> Path:
    """A video with two questions."""
    (root / "data").mkdir(parents=True)
    (root / "data" / "001.mp4").write_bytes(b"not looked into before it is added")
    questions = [
        {
            "question_id": f"001-{number}",
            "task_type": "Temporal Reasoning",
            "question": "What came first?",
            "options": ["A. the boat.", "B. the tent.", "C. U.S. flags", "D. none"],
            "answer": letter,
            "response": "",
        }
        for number, letter in enumerate("BC", start=1)
    ]
    entry = {"video_id": "001", "duration": "short", "domain": "Knowledge", "sub_category": "Astronomy"}
    return document(root / "video_mme.json", [{**entry, "questions": questions}])


def egoschema(root: Path) -> Path:
    """Two videos, the second without a known answer and without a question, as in the published file."""
    (root / "videos").mkdir(parents=True)
    options = {f"option {number}": f"C does {number}." for number in range(5)}
    entries = []
    for name in ("u-1", "u-2"):
        (root / "videos" / f"{name}.mp4").write_bytes(b"video")
        entries.append({"q_uid": name, "google_drive_id": "x", **options})
    entries[0]["question"] = "What is C doing?"
    document(root / "subset_answers.json", {"u-1": 3})
    return document(root / "questions.json", entries)


def mmdu(root: Path) -> Path:
    """A dialogue of two turns, in an object by number."""
    for name in "abc":
        picture(root / "images" / f"{name}.jpg")
    talk = [
        {"from": "user", "value": "<ImageHere><ImageHere>Describe both."},
        {"from": "assistant", "value": "Two squares."},
        {"from": "user", "value": "And this one?<ImageHere>"},
        {"from": "assistant", "value": "A third."},
    ]
    item = {"id": 7, "image": ["images/a.jpg", "./images/b.jpg", "c.jpg"], "conversations": talk}
    return document(root / "benchmark.json", {"0": item})


def sparkleseval(root: Path) -> Path:
    """A dialogue of two turns."""
    for number in (14, 1417, 804):
        picture(root / "images" / f"{number}.jpg")
    mark = "<Img><ImageHere></Img>"

    def image(number: int) -> dict[str, Any]:
        return {"image_id": number, "caption": "a square"}

    dialogue = [
        {"content": f"Link IMAGE#14{mark} and IMAGE#1417{mark}.", "images": [image(14), image(1417)]},
        {"content": "Both are red.", "images": []},
        {"content": f"And IMAGE#804{mark}?", "images": [image(804)]},
        {"content": "It is red too."},
    ]
    name = "sparkles_evaluation_sparkleseval_annotations.json"
    return document(root / "annotations" / name, [{"evaluation_id": 3, "dialogue": dialogue}])


def musique(root: Path) -> Path:
    """A two-hop question with a distracting paragraph between the supporting ones."""
    paragraphs = [
        {"idx": 0, "title": "Ada", "paragraph_text": "Ada was born in Lund.", "is_supporting": True},
        {"idx": 1, "title": "Bob", "paragraph_text": "Bob was not.", "is_supporting": False},
        {"idx": 2, "title": "Lund", "paragraph_text": "Lund is in Skåne.", "is_supporting": True},
    ]
    hops = [
        {"id": 1, "question": "Ada >> born in", "answer": "Lund", "paragraph_support_idx": 0},
        {"id": 2, "question": "#1 >> lies in", "answer": "Skåne", "paragraph_support_idx": 2},
    ]
    record = {
        "id": "2hop__1_2",
        "paragraphs": paragraphs,
        "question": "Where does Ada's town lie?",
        "question_decomposition": hops,
        "answer": "Skåne",
        "answer_aliases": ["Scania"],
        "answerable": True,
    }
    return lines(root / "musique.jsonl", record)


def own(root: Path) -> Path:
    """One item of the project's own form."""
    picture(root / "media" / "a.png")
    parts = [{"kind": "image", "file": "media/a.png", "slides": 1}, {"kind": "text", "text": "a map"}, "look :"]
    questions = [{"id": "q", "parts": ["what ?"], "answer": "a", "options": ["a", "b"], "correct": 0}]
    return lines(root / "items.jsonl", {"id": "i", "task": "mine", "parts": parts, "questions": questions})


MAKERS: dict[str, Maker] = {
    "mm-niah": mm_niah,
    "muirbench": muirbench,
    "milebench": milebench,
    "video-mme": video_mme,
    "egoschema": egoschema,
    "mmdu": mmdu,
    "sparkleseval": sparkleseval,
    "musique": musique,
    "emblema": own,
}
