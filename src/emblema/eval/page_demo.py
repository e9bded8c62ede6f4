"""Pages of plain English for the demo of a language model that reads them: pictures, questions and arrangements."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from emblema.engine.engine import Engine
from emblema.eval.demo_media import DemoQuestion, Situation
from emblema.eval.pages import PageSplitter, draw_page
from emblema.kv.chunk import Chunk, Clip
from emblema.session.prompt_reader import PromptPart
from emblema.session.turn_tokenizer import AFTER_CHUNK, TurnTokenizer

TEXTS = (
    "Lessons in chemistry are given by Mrs. Barker. In the morning a group of students read aloud from a long letter, "
    "and nobody was surprised. The old postman waited for the bus in the rain.\n",
    "Lessons in Latin are given by Mrs. Dawson. After the long winter two cousins from the coast painted the wooden "
    "gate again. The children watched, and then went home for dinner.\n",
    "Agnes, whose birthday is in May, is taught by Mrs. Barker. On most weekends the owner of the inn played cards "
    "until it was dark. Several visitors asked the way to the railway station.\n",
    "Walter, whose birthday is in July, is taught by Mrs. Dawson. In those days the village council talked about the "
    "price of bread without saying much about it.\n",
)
"""What stands on the pages; each fits on one."""
BARKER, DAWSON, AGNES, WALTER = NAMES = ("barker.png", "dawson.png", "agnes.png", "walter.png")
QUESTIONS = (
    DemoQuestion("one", "Who teaches Walter?", "Dawson", (WALTER,), "Walter is taught by Mrs."),
    DemoQuestion("two", "Which subject does Agnes learn?", "chemistry", (BARKER, AGNES), "Agnes takes lessons in"),
    DemoQuestion("direct", "Which subject does Mrs. Dawson teach?", "Latin", (DAWSON,), "Mrs. Dawson gives lessons in"),
    DemoQuestion("one", "When is the birthday of Walter?", "July", (WALTER,), "The birthday of Walter is in"),
)
"""Chosen among those that the language model answers rightly where it computes every row; many it does not."""
OPENINGS = (
    "Read these pages.\n",
    "Here are some notes of yesterday.\n",
    "The office keeps these papers.\n",
)
ASKED = 3
"""Questions of an arrangement."""
FOLDER = "pages"


@dataclass(frozen=True, slots=True)
class PageMedia:
    """Pages drawn for a model.

    Attributes:
        head: what its chat template begins a prompt with.
        openings: token ids of the texts before the pages.
        tails: token ids after the pages, by question: it, the end of the turn, and the beginning of the answer.
    """

    folder: Path
    head: tuple[int, ...]
    openings: tuple[tuple[int, ...], ...]
    tails: Mapping[DemoQuestion, tuple[int, ...]]
    files: tuple[str, ...] = NAMES
    frames_per_second: float = 1.0
    described: str = f"{len(NAMES)} pages of English, drawn as pictures"
    answer_tokens: int = 4
    template: bool = False

    def thumbnails(self) -> list[tuple[str, Image.Image]]:
        """Return the pages with their names."""
        return [(Path(name).stem, Image.open(self.folder / name)) for name in self.files]

    def questions(self, situation: Situation) -> tuple[DemoQuestion, ...]:
        """Return the first questions that the pages of a situation can answer."""
        there = {self.files[index] for index in situation.order}
        return tuple(question for question in QUESTIONS if set(question.pages) <= there)[:ASKED]

    def parts(
        self, situation: Situation, added: Mapping[str, Chunk | Clip], question: DemoQuestion
    ) -> list[PromptPart]:
        """Return the parts of a question's prompt."""
        pages = [added[self.files[index]] for index in situation.order]
        return [self.head, self.openings[situation.opening], *pages, self.tails[question]]


def draw_pages(engine: Engine, folder: Path) -> PageMedia:
    """Draw the demo's pages into a folder, in Pillow's own font, and return them with the prompts of a model."""
    target = folder / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    splitter = PageSplitter(engine.tokenizer)
    for name, text in zip(NAMES, TEXTS, strict=True):
        (page,) = splitter.pages(text)
        draw_page(page).save(target / name)
    reader = engine.session.prompt_reader
    turn = TurnTokenizer(reader)
    tails = {
        question: (*turn.closing(AFTER_CHUNK, f"Question: {question.text}"), *_ids(engine, question.lead))
        for question in QUESTIONS
    }
    return PageMedia(target, tuple(engine.adapter.anchor), tuple(_ids(engine, text) for text in OPENINGS), tails)


def _ids(engine: Engine, text: str) -> tuple[int, ...]:
    return tuple(engine.tokenizer(text, add_special_tokens=False)["input_ids"])


ORDERS = (
    Situation("1  pages in order 1-2-3-4", "new order", 0, (0, 1, 2, 3)),
    Situation("2  the same pages after another opening", "new opening", 1, (0, 1, 2, 3)),
    Situation("3  pages in order 3-1-4-2", "new order", 0, (2, 0, 3, 1)),
    Situation("4  that order after another opening", "new opening", 2, (2, 0, 3, 1)),
    Situation("5  page 2 is left out", "a page left out", 0, (0, 2, 3)),
)
