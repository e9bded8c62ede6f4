"""The pictures, the clip and the questions of the package, and the prompts that the demo makes of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from emblema.errors import MediaError
from emblema.kv.chunk import Chunk, Clip
from emblema.library.items import chunks_of
from emblema.session.prompt_reader import PromptPart, slid

MULTI_HOP = "land"


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question about the media with its one-word answer; `pages` names the files that it needs."""

    kind: str
    text: str
    answer: str
    pages: tuple[str, ...]

    @property
    def multi_hop(self) -> bool:
        """Whether the answer joins something on one page with something on another."""
        return self.kind == MULTI_HOP


@dataclass(frozen=True, slots=True)
class DemoMedia:
    """The media of the package: files in a folder, opening texts, and questions."""

    folder: Path
    legends: tuple[str, ...]
    maps: tuple[str, ...]
    clip: str
    frames_per_second: float
    openings: tuple[str, ...]
    questions: tuple[DemoQuestion, ...]
    clip_questions: tuple[DemoQuestion, ...]

    @property
    def pictures(self) -> tuple[str, ...]:
        return self.legends + self.maps

    def sample(self, maps: int = 2) -> tuple[str, ...]:
        """Return a legend and the first maps that multi-hop questions join with it."""
        legend = self.legends[0]
        joined = [
            page
            for question in self.questions
            if question.multi_hop and legend in question.pages
            for page in question.pages[1:]
        ]
        return (legend, *dict.fromkeys(joined[:maps]))

    def about(self, names: tuple[str, ...]) -> tuple[DemoQuestion, ...]:
        """Return the questions that these files alone can answer."""
        return tuple(question for question in self.questions if set(question.pages) <= set(names))


def demo_media(folder: Path | None = None) -> DemoMedia:
    """Read the bundled media.

    Raises:
        MediaError: the listing is missing or is not what it should be.
    """
    home = Path(str(files("emblema"))) / "assets" / "demo" if folder is None else folder
    try:
        listing = json.loads((home / "demo.json").read_text(encoding="utf-8"))
        return DemoMedia(
            folder=home,
            legends=tuple(listing["legends"]),
            maps=tuple(listing["maps"]),
            clip=listing["clip"],
            frames_per_second=float(listing["clip_frames_per_second"]),
            openings=tuple(listing["openings"]),
            questions=_asked(listing["questions"]),
            clip_questions=_asked(listing["clip_questions"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MediaError(f"the demo's media in {home} cannot be read ({error!r}): install the package again") from error


def _asked(listed: list[dict[str, Any]]) -> tuple[DemoQuestion, ...]:
    return tuple(DemoQuestion(entry["kind"], entry["text"], entry["answer"], tuple(entry["pages"])) for entry in listed)


@dataclass(frozen=True, slots=True)
class Situation:
    """An arrangement of the same pages.

    Attributes:
        title: for a reader.
        case: situations with the same case are summed up together.
        opening: index of the opening text.
        order: indices of the legends, in their order.
        slid: whether the window has moved past the legends (or, with the clip, past its first scene).
        clip: whether the clip follows the maps, and is asked about.
    """

    title: str
    case: str
    opening: int
    order: tuple[int, ...]
    slid: bool = False
    clip: bool = False

    def parts(self, media: DemoMedia, added: Mapping[str, Chunk | Clip], question: str) -> list[PromptPart]:
        """Return the parts of a question's prompt."""
        legends: list[PromptPart] = [added[media.legends[index]] for index in self.order]
        if self.slid and not self.clip:
            legends = [slid(added[media.legends[index]]) for index in self.order]
        parts = [media.openings[self.opening], *legends, *(added[name] for name in media.maps)]
        if self.clip:
            first, *rest = chunks_of(added[media.clip])
            parts += [slid(first) if self.slid else first, *rest]
        return [part for part in parts if part] + [question]

    def questions(self, media: DemoMedia, multi_hop: int = 2) -> tuple[DemoQuestion, ...]:
        """Return one single-hop question and the first `multi_hop` multi-hop ones."""
        listed = media.clip_questions if self.clip else media.questions
        single = [question for question in listed if question.kind == "colour"][:1]
        return (*single, *[question for question in listed if question.multi_hop][:multi_hop])


SITUATIONS = (
    Situation("1  legends in order 1-2-3", "new order", 0, (0, 1, 2)),
    Situation("2  the same pages after another opening", "new opening", 1, (0, 1, 2)),
    Situation("3  legends in order 3-1-2", "new order", 0, (2, 0, 1)),
    Situation("4  that order after another opening", "new opening", 2, (2, 0, 1)),
    Situation("5  the window has slid past the legends", "after the slide", 2, (0, 1, 2), slid=True),
    Situation("6  a clip follows; its first scene has slid away", "clip added", 1, (0, 1, 2), slid=True, clip=True),
)
