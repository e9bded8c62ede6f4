"""Items through an engine: their media added once, their questions as prompts in the settings visible and slid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.tasks.asking import Style, turns
from benchmarks.tasks.items import Item, Media, Part
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk, Clip
from emblema.session.prompt_reader import PromptPart, slid

SETTINGS = ("visible", "slid")
Piece = tuple[Chunk, ...]


def add(engine: Engine, media: Media, fps: float = 1.0, frames_per_segment: int = 2) -> Piece:
    """The chunks of a piece of media; a video's at `fps` frames a second, `frames_per_segment` a chunk."""
    if media.kind == "text":
        made: Chunk | Clip = engine.add(text=str(media.content))
    else:
        made = engine.add(media.content, kind=media.kind, fps=fps, frames_per_segment=frames_per_segment)
    return (made,) if isinstance(made, Chunk) else tuple(made)


def pieces(engine: Engine, item: Item, fps: float = 1.0, frames_per_segment: int = 2) -> tuple[Piece, ...]:
    """The chunks of every piece of media, in the order of `item.media`."""
    return tuple(add(engine, media, fps, frames_per_segment) for media in item.media)


def messages(
    item: Item, index: int, made: Sequence[Piece], setting: str, style: Style = "words"
) -> list[dict[str, Any]]:
    """The prompt of a question as messages for `Engine.prefill`, media replaced by the chunks that `pieces` made.

    Raises:
        PromptError: the setting is none of `SETTINGS`.
    """
    return [{"role": role, "content": parts} for role, parts in _laid(item, index, made, setting, style)]


def plain_parts(
    item: Item, index: int, made: Sequence[Piece], setting: str, style: Style = "words"
) -> list[PromptPart]:
    """The same as parts in one row, for models without a chat template (`template=False`); turns end with a newline."""
    said = [parts for _, parts in _laid(item, index, made, setting, style)]
    return [part for parts in said[:-1] for part in (*parts, "\n")] + said[-1]


def _laid(
    item: Item, index: int, made: Sequence[Piece], setting: str, style: Style
) -> list[tuple[str, list[PromptPart]]]:
    if setting not in SETTINGS:
        raise PromptError(f"unknown setting {setting!r}: choose one of {', '.join(SETTINGS)}")
    known = {id(media): piece for media, piece in zip(item.media, made, strict=True)}

    def laid(part: Part) -> list[PromptPart]:
        if isinstance(part, str):
            return [part] if part else []
        piece = known[id(part)]
        gone = round(part.slides * len(piece)) if setting == "slid" else 0
        return [*(slid(chunk) for chunk in piece[:gone]), *piece[gone:]]

    return [(turn.role, [one for part in turn.parts for one in laid(part)]) for turn in turns(item, index, style)]


def slides(item: Item) -> bool:
    """Whether anything is absent in the setting slid."""
    return any(media.slides > 0 for media in item.media)
