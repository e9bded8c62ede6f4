"""The pictures, the clip and the questions of the package, and the arrangements in which the demo asks them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from emblema.errors import MediaError
from emblema.kv.chunk import Chunk, Clip
from emblema.library.items import chunks_of
from emblema.session.prompt_reader import PromptPart, slid

FOLDER = Path(str(files("emblema"))) / "assets" / "demo"
WALK = FOLDER / "walk.mp4"
"""A video that the bundled `reference-stream` can read, a frame every two seconds."""
MULTI_HOP = ("land", "two")


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question about the media with its one-word answer.

    Attributes:
        pages: the names of the files that it needs.
        lead: the beginning of the answer that the model is given, up to the word; none where models answer in a word.
    """

    kind: str
    text: str
    answer: str
    pages: tuple[str, ...]
    lead: str = ""

    @property
    def multi_hop(self) -> bool:
        """Whether the answer joins something on one page with something on another."""
        return self.kind in MULTI_HOP

    def accepts(self, text: str) -> bool:
        """Return whether a reply is right: the word, or after a lead what begins with it."""
        return text.strip().startswith(self.answer) if self.lead else text == self.answer


@dataclass(frozen=True, slots=True)
class Situation:
    """An arrangement of media.

    Attributes:
        title: for a reader.
        case: situations with the same case are summed up together.
        opening: index of the opening text.
        order: indices of the pages that move, in their order.
        slid: whether the window has moved past them (or, with the clip, past its first scene).
        clip: whether the clip follows, and is asked about.
    """

    title: str
    case: str
    opening: int
    order: tuple[int, ...]
    slid: bool = False
    clip: bool = False


@dataclass(frozen=True, slots=True)
class DemoMedia:
    """The media of the package: files in a folder, opening texts, and questions."""

    folder: Path
    legends: tuple[str, ...]
    maps: tuple[str, ...]
    clip: str
    frames_per_second: float
    openings: tuple[str, ...]
    all_questions: tuple[DemoQuestion, ...]
    clip_questions: tuple[DemoQuestion, ...]
    answer_tokens: int = 4
    template: bool = True

    @property
    def pictures(self) -> tuple[str, ...]:
        return self.legends + self.maps

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.pictures, self.clip)

    @property
    def described(self) -> str:
        return f"{len(self.pictures)} pictures and a clip"

    def thumbnails(self) -> list[tuple[str, Image.Image]]:
        """Return captions and pictures: the legends, a map, and two scenes of the clip."""
        from emblema.media import load_video

        shown = [(f"legend {index + 1}", Image.open(self.folder / name)) for index, name in enumerate(self.legends)]
        asked = next(question for question in self.all_questions if question.multi_hop)
        page = next(name for name in asked.pages if name in self.maps)
        shown.append((f"one of {len(self.maps)} maps", Image.open(self.folder / page)))
        frames = load_video(self.folder / self.clip, self.frames_per_second).frames
        return [*shown, ("clip: first scene", frames[0]), ("clip: last scene", frames[-1])]

    def questions(self, situation: Situation) -> tuple[DemoQuestion, ...]:
        """Return one single-hop question and the first two multi-hop ones."""
        listed = self.clip_questions if situation.clip else self.all_questions
        single = [question for question in listed if question.kind == "colour"][:1]
        return (*single, *[question for question in listed if question.multi_hop][:2])

    def parts(
        self, situation: Situation, added: Mapping[str, Chunk | Clip], question: DemoQuestion
    ) -> list[PromptPart]:
        """Return the parts of a question's prompt."""
        legends = [added[self.legends[index]] for index in situation.order]
        gone = situation.slid and not situation.clip
        parts: list[PromptPart] = [self.openings[situation.opening]]
        parts += [*map(slid, legends)] if gone else legends
        parts += [added[name] for name in self.maps]
        if situation.clip:
            first, *rest = chunks_of(added[self.clip])
            parts += [slid(first) if situation.slid else first, *rest]
        return [part for part in parts if part] + [question.text]

    def sample(self, maps: int = 2) -> tuple[str, ...]:
        """Return a legend and the first maps that multi-hop questions join with it."""
        legend = self.legends[0]
        asked = [question for question in self.all_questions if question.multi_hop and legend in question.pages]
        joined = [page for question in asked for page in question.pages[1:]]
        return (legend, *dict.fromkeys(joined[:maps]))

    def about(self, names: tuple[str, ...]) -> tuple[DemoQuestion, ...]:
        """Return the questions that these files alone can answer."""
        return tuple(question for question in self.all_questions if set(question.pages) <= set(names))


def demo_media(folder: Path | None = None) -> DemoMedia:
    """Read the bundled media.

    Raises:
        MediaError: the listing is missing or is not what it should be.
    """
    home = FOLDER if folder is None else folder
    try:
        listing = json.loads((home / "demo.json").read_text(encoding="utf-8"))
        return DemoMedia(
            folder=home,
            legends=tuple(listing["legends"]),
            maps=tuple(listing["maps"]),
            clip=listing["clip"],
            frames_per_second=float(listing["clip_frames_per_second"]),
            openings=tuple(listing["openings"]),
            all_questions=_asked(listing["questions"]),
            clip_questions=_asked(listing["clip_questions"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MediaError(f"the demo's media in {home} cannot be read ({error!r}): install the package again") from error


def _asked(listed: list[dict[str, Any]]) -> tuple[DemoQuestion, ...]:
    return tuple(DemoQuestion(entry["kind"], entry["text"], entry["answer"], tuple(entry["pages"])) for entry in listed)


SITUATIONS = (
    Situation("1  legends in order 1-2-3", "new order", 0, (0, 1, 2)),
    Situation("2  the same pages after another opening", "new opening", 1, (0, 1, 2)),
    Situation("3  legends in order 3-1-2", "new order", 0, (2, 0, 1)),
    Situation("4  that order after another opening", "new opening", 2, (2, 0, 1)),
    Situation("5  the window has slid past the legends", "after the slide", 2, (0, 1, 2), slid=True),
    Situation("6  a clip follows; its first scene has slid away", "clip added", 1, (0, 1, 2), slid=True, clip=True),
)
