"""Items as a file of Emblema's own form, so that its reader is held to everything that items hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.tasks.items import Part, TaskItem

_FILE = {"image": ".png", "video": ".mp4"}


def write_items(items: Iterable[TaskItem], form: str, out: Path) -> Path:
    """Write `items.jsonl` and media below a folder; returns the file of records."""
    assert form == "emblema"
    (out / "media").mkdir(parents=True)

    def plain(parts: Sequence[Part], name: str) -> list[Any]:
        shown: list[Any] = []
        for place, part in enumerate(parts):
            if isinstance(part, str):
                shown.append(part)
            elif isinstance(part.content, str):
                shown.append({"kind": "text", "text": part.content, "slides": part.slides})
            else:
                file = f"media/{name}-{place}{_FILE[part.kind]}"
                if isinstance(part.content, Image.Image):
                    part.content.save(out / file)
                else:
                    assert isinstance(part.content, bytes)
                    (out / file).write_bytes(part.content)
                shown.append({"kind": part.kind, "file": file, "slides": part.slides})
        return shown

    lines = []
    for item in items:
        asked = [
            {"id": each.id, "parts": plain(each.parts, each.id), "answer": each.answer,
             "options": plain(each.options, f"{each.id}-option"), "correct": each.correct if each.options else None,
             "multi_hop": each.multi_hop, "kind": each.kind, "aliases": list(each.aliases)}
            for each in item.questions
        ]  # fmt: skip
        line = {"id": item.id, "task": item.task, "episode": item.episode, "dialogue": item.dialogue}
        line |= {"instruction": item.instruction, "parts": plain(item.parts, item.id), "questions": asked}
        lines.append(json.dumps(line) + "\n")
    (out / "items.jsonl").write_text("".join(lines))
    return out / "items.jsonl"
