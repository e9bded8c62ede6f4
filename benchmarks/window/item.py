"""One item of the window's tables: pages of the bundled world, a map to reuse after them, and questions about it.

Every question asks for a land, which the map alone does not tell: it depends on what the map absorbed from the legend
before it. It is put in two settings: `visible`, with all pages still there, and `slid`, with the pages before the map
gone for the question, so that the answer is only in what the map took from them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from benchmarks.fidelity.ablations import MadeRows, position_free
from benchmarks.tasks.building import phrase, stream
from benchmarks.tasks.episodes import legend_page, map_page
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import BLANK, LANDS, Legend, Map
from emblema.engine.engine import Engine
from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.kv.patch import Patch, deficit
from emblema.kv.rotation import PhaseBook, place, unplace
from emblema.link.executor import Executor
from emblema.link.forming import conditioned_table
from emblema.link.plan import LinkPlan
from emblema.link.prompt import ChunkPart, Part, Prompt, RowState, Segment, TextPart
from emblema.link.strategies.base import Knowledge, Strategy, computed
from emblema.link.taken_rows import LinkJob
from emblema.models.adapter import Adapter
from emblema.models.tables import KVTable
from emblema.session.prompt_reader import PromptPart

SIDE = 8
COLOURS = 6
ASKED = 2
"""Questions about icons on each legend's colours, at most."""
MAPS = 9
KEPT = 8
"""Page sequences kept at a time."""
SUBJECT = "map"
SPARE = "page"

Rows = tuple[LayerRows, ...]
Logits = dict[str, list[np.ndarray]]
"""By setting, for each question, [vocab] float32."""


@dataclass(frozen=True, slots=True)
class MapQuestion:
    """A question about the map: which legend knows the answer (0 or 1), and the answer's token."""

    legend: int
    tail: TextPart
    expected: int


class WindowItem:
    """An item on one model.

    Its pages by name: `legend0` and `legend1` list three colours each; `other0` and `other1` list the same ones with
    other lands; `map0` to `map8` have icons that are not asked for; `page` is white; `map` is what the questions are
    about.
    """

    def __init__(self, engine: Engine, seed: int, index: int) -> None:
        random = stream("window", seed, index)
        self.engine, self.adapter, self.index = engine, engine.adapter, index
        self.episode = f"window-{seed}-{index:04d}"
        colours = [int(colour) for colour in random.permutation(COLOUR_COUNT)[:COLOURS]]
        lands = {colour: int(random.integers(LAND_COUNT)) for colour in colours}
        others = {colour: int(land + random.integers(1, LAND_COUNT)) % LAND_COUNT for colour, land in lands.items()}
        halves = (colours[: COLOURS // 2], colours[COLOURS // 2 :])
        icons = [int(icon) for icon in random.permutation(len(ICON_NAMES))]
        self.pages: dict[str, Legend | Map] = {SPARE: Legend(np.full((SIDE, SIDE), BLANK, dtype=np.int64), {})}
        for number, half in enumerate(halves):
            self.pages[f"legend{number}"] = legend_page(random, SIDE, {colour: lands[colour] for colour in half})
            self.pages[f"other{number}"] = legend_page(random, SIDE, {colour: others[colour] for colour in half})
        subject = self.pages[SUBJECT] = map_page(random, SIDE, colours, icons[:COLOURS])
        for number in range(MAPS):
            self.pages[f"map{number}"] = map_page(random, SIDE, colours, icons[COLOURS:][number::MAPS][:2])
        self._asked: list[tuple[int, str, str]] = []
        for number, half in enumerate(halves):
            shown = [(icon, colour) for icon, colour in subject.icon_colours().items() if colour in half]
            for icon, colour in shown[:ASKED]:
                self._asked.append((number, phrase(random, "land", ICON_NAMES[icon]), LANDS[lands[colour]]))
        self._chunks: dict[str, Chunk] = {}
        self._alone: dict[str, Chunk] = {}
        self._canonical: dict[str, Rows] = {}
        self._sequences: dict[tuple[str, ...], PageSequence] = {}

    def chunk(self, name: str) -> Chunk:
        """Return a page as the decoder is fed it, without rows; the encoder runs once for each."""
        if name not in self._chunks:
            (piece,) = self.engine.encode(self.pages[name].image())
            self._chunks[name] = Chunk(piece.id, piece.kind, self.adapter.fingerprint, piece.encoded, ())
        return self._chunks[name]

    def alone(self, name: str) -> Chunk:
        """Return a page prefilled alone, with its rows."""
        if name not in self._alone:
            chunk = self.chunk(name)
            self._alone[name] = replace(chunk, rows=self.adapter.capture(chunk.encoded))
        return self._alone[name]

    def canonical(self, name: str) -> Rows:
        """Return position-free rows of a page prefilled alone."""
        if name not in self._canonical:
            chunk = self.alone(name)
            book = PhaseBook(self.adapter.tables, chunk.encoded.positions.to(self.adapter.device))
            self._canonical[name] = tuple(
                unplace(chunk.rows[layer].to(self.adapter.device), layout, book)
                for layer, layout in enumerate(self.adapter.layouts)
            )
        return self._canonical[name]

    @cached_property
    def opening(self) -> tuple[Part, ...]:
        """What the template writes before a message's first part."""
        return tuple(segment.part for segment in self._prompt(self._asked[0][1]).segments[:-2])

    @cached_property
    def questions(self) -> tuple[MapQuestion, ...]:
        """What is asked about the map."""
        tokenizer = self.engine.template.tokenizer
        found = []
        for legend, text, answer in self._asked:
            tail = self._prompt(text).segments[-1].part
            if isinstance(tail, TextPart):
                found.append(
                    MapQuestion(legend, tail, int(tokenizer(answer, add_special_tokens=False)["input_ids"][0]))
                )
        return tuple(found)

    def _prompt(self, text: str) -> Prompt:
        content: list[PromptPart] = [self.chunk(SUBJECT), text]
        if self.engine.template.preparer.chat_template:
            return self.engine.prompt([{"role": "user", "content": content}])
        return self.engine.prompt(content, template=False)

    def sequence(self, *names: str) -> "PageSequence":
        """Return pages in an order, every row computed in context; the last few sequences are kept."""
        if names not in self._sequences:
            if len(self._sequences) == KEPT:
                self._sequences.pop(next(iter(self._sequences)))
            self._sequences[names] = PageSequence(self, names)
        return self._sequences[names]


class PageSequence:
    """Pages after a prompt's opening, every row computed in context."""

    def __init__(self, item: WindowItem, names: Sequence[str]) -> None:
        self.item, self.names = item, tuple(names)
        self.prompt = self._prompt()
        self.table = conditioned_table(Executor(item.adapter), self.prompt)

    def _prompt(self, tail: TextPart | None = None, *, slid: bool = False) -> Prompt:
        last = len(self.names) - 1
        chunks = [ChunkPart(self.item.chunk(name), slid=slid and place < last) for place, name in enumerate(self.names)]
        ending = () if tail is None else (tail,)
        return Prompt.of((*self.item.opening, *chunks, *ending), self.item.adapter.axes)

    def rows(self, at: int = -1) -> Rows:
        """Return position-free rows of the page at a place, as they were computed here."""
        segment, _ = self.prompt.chunk_segments[at]
        return read_rows(self.item.adapter, self.table, self.prompt, segment)

    def deficits(self, at: int = -1) -> Rows:
        """Return what the page at a place absorbed from what is before it (Kamera, equation 2)."""
        return difference(self.rows(at), self.item.canonical(self.names[at]))

    @cached_property
    def _last_taken(self) -> Prompt:
        """The first question after these pages, the last of which is taken and all others computed."""
        parts = [other.part for other in self._prompt(self.item.questions[0].tail).segments]
        parts = [replace(part, state=RowState.MISSING) if isinstance(part, ChunkPart) else part for part in parts]
        parts[-2] = ChunkPart(self.item.alone(self.names[-1]))
        return Prompt.of(parts, self.item.adapter.axes)

    def made(self, strategy: MadeRows) -> Rows:
        """Return position-free rows of the last page as a strategy makes them, everything before it exact."""
        adapter, chunk = self.item.adapter, self.item.alone(self.names[-1])
        rows = strategy.rows(Executor(adapter), self._last_taken, ())[chunk.id]
        return tuple(position_free(adapter, replace(chunk, rows=rows)))

    def under(self, strategy: Strategy) -> Rows:
        """Return position-free rows of the last page as a strategy's plan leaves them, everything before it exact."""
        item, (segment, _) = self.item, self.prompt.chunk_segments[-1]
        adapter, start, prompt = item.adapter, segment.start, self._last_taken
        known = Knowledge(adapter.fingerprint, adapter.layouts, lambda key: None, lambda prompt: None)
        plan = strategy.plan(prompt, known)
        layers = range(len(adapter.layouts))
        exact = _copied(self.table.read(layer, *segment.rows) for layer in layers)
        self.table.truncate(start)
        try:
            Executor(adapter).run(LinkJob(plan.after(start), prompt, reused_rows=start), table=self.table)
            return read_rows(adapter, self.table, self.prompt, segment)
        finally:
            self.table.truncate(start)
            places = torch.arange(*segment.rows)
            self.table.allocate(places.to(adapter.device), self.prompt.groups[places].to(adapter.device))
            for layer in layers:
                self.table.write(layer, slice(*segment.rows), exact[layer])

    @cached_property
    def _asked(self) -> list[Prompt]:
        """Every question after these pages, in both settings."""
        settings = ((setting, question) for setting in SETTINGS for question in self.item.questions)
        return [self._prompt(question.tail, slid=setting == "slid") for setting, question in settings]

    @torch.inference_mode()
    def ask(self, given: Mapping[int, Rows] | None = None) -> Logits:
        """Answer every question in both settings, with other position-free rows for the pages at some places."""
        adapter, table, held = self.item.adapter, self.table, []
        for at, rows in (given or {}).items():
            segment, _ = self.prompt.chunk_segments[at]
            slots = slice(*segment.rows)
            book = PhaseBook(adapter.tables, self.prompt.positions[:, slots].to(adapter.device))
            for layer, (layout, own) in enumerate(zip(adapter.layouts, rows, strict=True)):
                held.append((layer, slots, _copied([table.read(layer, *segment.rows)])[0]))
                table.write(layer, slots, place(own, layout, book, adapter.dtype))
        try:
            found = [self._last_logits(prompt) for prompt in self._asked]
        finally:
            for layer, slots, before in held:
                table.write(layer, slots, before)
        count = len(self.item.questions)
        return {setting: found[place * count : (place + 1) * count] for place, setting in enumerate(SETTINGS)}

    def _last_logits(self, prompt: Prompt) -> np.ndarray:
        """Return the last logits [vocab] float32 of a prompt that begins with these pages; the table is as it was."""
        layers, start = len(self.item.adapter.layouts), self.prompt.tokens
        plan = LinkPlan("window", prompt.tokens, layers, tuple(computed(prompt, layers, start, prompt.tokens)))
        job = LinkJob(plan.after(start), prompt, reused_rows=start)
        logits = Executor(self.item.adapter).run(job, table=self.table).logits.cpu().numpy()
        self.table.truncate(start)
        return logits


def read_rows(adapter: Adapter, table: KVTable, prompt: Prompt, segment: Segment) -> Rows:
    """Return a segment's rows of a table that holds the whole prompt: copies, position-free, float32."""
    book = PhaseBook(adapter.tables, prompt.positions[:, segment.start : segment.stop].to(adapter.device))
    return _copied(
        unplace(table.read(layer, *segment.rows), layout, book) for layer, layout in enumerate(adapter.layouts)
    )


def _copied(rows: Iterable[LayerRows]) -> Rows:
    """Return rows apart from the table they were read from: what is not turned is a view of it."""
    return tuple(LayerRows(layer.keys.clone(), layer.values.clone()) for layer in rows)


def difference(rows: Rows, base: Rows) -> Rows:
    """Return rows less others, layer by layer; float32."""
    return tuple(deficit(own, other) for own, other in zip(rows, base, strict=True))


def added(rows: Rows, patch: Patch) -> Rows:
    """Return position-free rows with a patch added."""
    return tuple(own if layer is None else layer.apply(own) for own, layer in zip(rows, patch.layers, strict=True))


def norm(rows: Rows) -> float:
    """Return the norm of rows over all layers, keys and values together."""
    return float(sum(layer.keys.square().sum() + layer.values.square().sum() for layer in rows)) ** 0.5
