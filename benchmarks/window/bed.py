"""One item of the window's tables: pages of the bundled world, a map to reuse behind them, and questions about it.

Every question asks for a land, which the map alone does not tell: it depends on what the map absorbed from the legend
before it. It is put in two settings: `visible`, with everything in front still there, and `slid`, with the antecedents
gone for the question, so that the answer is only in what the map took from them.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from benchmarks.deficit.subject import alone, read_rows
from benchmarks.fidelity.linking import endings
from benchmarks.tasks.building import phrase, stream
from benchmarks.tasks.episodes import legend_page, map_page
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import BLANK, LANDS, Legend, Map
from emblema.engine.engine import Engine
from emblema.kv.artifacts import Artifact
from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.kv.patch import Patch, deficit
from emblema.kv.rotation import PhaseBook, place
from emblema.link.executor import Executor
from emblema.link.forming import conditioned_table, form_residual
from emblema.link.plan import LinkPlan
from emblema.link.prompt import ChunkPart, Part, Prompt, RowState, TextPart
from emblema.link.strategies.base import Knowledge, Strategy, computed
from emblema.link.taken_rows import LinkJob, Resources
from emblema.session.prompt_reader import PromptPart
from emblema.store.keys import PatchKey

SIDE = 8
COLOURS = 6
ASKED = 2
"""Questions about icons on each legend's colours, at most."""
MAPS = 9
KEPT = 8
"""Fronts kept at a time."""
SUBJECT = "map"
SPARE = "page"

Rows = tuple[LayerRows, ...]
Logits = dict[str, list[np.ndarray]]
"""By setting, for each question, [vocab] float32."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about the map: which legend knows the answer (0 or 1), and the answer's token."""

    legend: int
    tail: TextPart
    expected: int


class Bed:
    """An item on one model.

    Its pages by name: `legend0` and `legend1` list three colours each; `other0` and `other1` list the same ones with
    other lands; `map0` to `map8` have icons that nobody asks for; `page` is white; `map` is what the questions are
    about.
    """

    def __init__(self, engine: Engine, seed: int, index: int) -> None:
        random = stream("window", seed, index)
        self.engine, self.adapter, self.index, self.episode = (
            engine,
            engine.adapter,
            index,
            f"window-{seed}-{index:04d}",
        )
        colours = [int(colour) for colour in random.permutation(COLOUR_COUNT)[:COLOURS]]
        lands = {colour: int(random.integers(LAND_COUNT)) for colour in colours}
        others = {colour: int(land + random.integers(1, LAND_COUNT)) % LAND_COUNT for colour, land in lands.items()}
        halves = (colours[: COLOURS // 2], colours[COLOURS // 2 :])
        icons = [int(icon) for icon in random.permutation(len(ICON_NAMES))]
        self.pages: dict[str, Legend | Map] = {SPARE: Legend(np.full((SIDE, SIDE), BLANK, dtype=np.int64), {})}
        for number, half in enumerate(halves):
            self.pages[f"legend{number}"] = legend_page(random, SIDE, {colour: lands[colour] for colour in half})
            self.pages[f"other{number}"] = legend_page(random, SIDE, {colour: others[colour] for colour in half})
        subject = map_page(random, SIDE, colours, icons[:COLOURS])
        self.pages[SUBJECT] = subject
        spare = icons[COLOURS:]
        for number in range(MAPS):
            own = spare[number::MAPS][:2]
            self.pages[f"map{number}"] = map_page(random, SIDE, colours, own)
        self._asked: list[tuple[int, str, str]] = []
        for number, half in enumerate(halves):
            standing = [icon for icon, colour in subject.icon_colours().items() if colour in half]
            for icon in standing[:ASKED]:
                answer = LANDS[lands[subject.icon_colours()[icon]]]
                self._asked.append((number, phrase(random, "land", ICON_NAMES[icon]), answer))
        self._chunks: dict[str, Chunk] = {}
        self._alone: dict[str, Chunk] = {}
        self._canonical: dict[str, Rows] = {}
        self._fronts: OrderedDict[tuple[str, ...], Front] = OrderedDict()

    def chunk(self, name: str) -> Chunk:
        """A page as the decoder is fed it, without rows; the encoder runs once for each."""
        if name not in self._chunks:
            (piece,) = self.engine.encode(self.pages[name].image())
            self._chunks[name] = Chunk(piece.id, piece.kind, self.adapter.fingerprint, piece.encoded, ())
        return self._chunks[name]

    def alone(self, name: str) -> Chunk:
        """A page prefilled alone, with its rows."""
        if name not in self._alone:
            chunk = self.chunk(name)
            self._alone[name] = replace(chunk, rows=self.adapter.capture(chunk.encoded))
        return self._alone[name]

    def canonical(self, name: str) -> Rows:
        """Position-free rows of a page prefilled alone."""
        if name not in self._canonical:
            self._canonical[name] = alone(self.adapter, self.alone(name))
        return self._canonical[name]

    @cached_property
    def opening(self) -> tuple[Part, ...]:
        """What the template writes in front of a message's first part."""
        return tuple(one.part for one in self._laid(self._asked[0][1]).segments[:-2])

    @cached_property
    def questions(self) -> tuple[Asked, ...]:
        """What is asked about the map."""
        tokenizer = self.engine.template.tokenizer
        found = []
        for legend, text, answer in self._asked:
            tail = self._laid(text).segments[-1].part
            if isinstance(tail, TextPart):
                found.append(Asked(legend, tail, int(tokenizer(answer, add_special_tokens=False)["input_ids"][0])))
        return tuple(found)

    def _laid(self, text: str) -> Prompt:
        content: list[PromptPart] = [self.chunk(SUBJECT), text]
        if self.engine.template.preparer.chat_template:
            return self.engine.prompt([{"role": "user", "content": content}])
        return self.engine.prompt(content, template=False)

    def front(self, *names: str) -> "Front":
        """Pages in an order, every row computed in context; the last few are kept."""
        if names in self._fronts:
            self._fronts.move_to_end(names)
        else:
            self._fronts[names] = Front(self, names)
            if len(self._fronts) > KEPT:
                self._fronts.popitem(last=False)
        return self._fronts[names]


class Front:
    """Pages behind a prompt's opening, every row computed in context."""

    def __init__(self, bed: Bed, names: Sequence[str]) -> None:
        self.bed, self.names = bed, tuple(names)
        self.prompt = self._prompt()
        self.table = conditioned_table(Executor(bed.adapter), self.prompt)

    def _prompt(self, tail: TextPart | None = None, *, slid: bool = False) -> Prompt:
        last = len(self.names) - 1
        chunks = [ChunkPart(self.bed.chunk(name), slid=slid and place < last) for place, name in enumerate(self.names)]
        ending = () if tail is None else (tail,)
        return Prompt.of((*self.bed.opening, *chunks, *ending), self.bed.adapter.axes)

    def rows(self, at: int = -1) -> Rows:
        """Position-free rows of the page at a place, as they were computed here."""
        segment, _ = self.prompt.chunk_segments[at]
        return _own(read_rows(self.bed.adapter, self.table, self.prompt, segment))

    def deficits(self, at: int = -1) -> Rows:
        """What the page at a place absorbed from what stands before it (Kamera, equation 2)."""
        return difference(self.rows(at), self.bed.canonical(self.names[at]))

    def under(self, strategy: Strategy) -> Rows:
        """Position-free rows of the last page as a strategy makes them, everything before it exact."""
        bed, (segment, _) = self.bed, self.prompt.chunk_segments[-1]
        adapter, start = bed.adapter, segment.start
        parts = [one.part for one in self._prompt(bed.questions[0].tail).segments]
        parts = [replace(part, state=RowState.MISSING) if isinstance(part, ChunkPart) else part for part in parts]
        parts[-2] = ChunkPart(bed.alone(self.names[-1]))
        prompt = Prompt.of(parts, adapter.axes)
        artifacts: dict[PatchKey, Artifact] = {}
        plan = strategy.plan(prompt, Knowledge(adapter.fingerprint, adapter.layouts, artifacts.get, lambda one: None))
        for key in plan.forming:
            artifacts[key] = form_residual(adapter, key, bed.alone(self.names[-1]))
        layers = range(len(adapter.layouts))
        exact = [self.table.read(layer, *segment.rows) for layer in layers]
        exact = [LayerRows(one.keys.clone(), one.values.clone()) for one in exact]
        self.table.truncate(start)
        try:
            Executor(adapter).run(LinkJob(plan.after(start), prompt, Resources(artifacts), start), table=self.table)
            return _own(read_rows(adapter, self.table, self.prompt, segment))
        finally:
            self.table.truncate(start)
            places = torch.arange(*segment.rows)
            self.table.allocate(places.to(adapter.device), self.prompt.groups[places].to(adapter.device))
            for layer in layers:
                self.table.write(layer, slice(*segment.rows), exact[layer])

    @cached_property
    def _asked(self) -> tuple[list[Prompt], list[LinkPlan]]:
        """Every question in both settings, and the plan that computes its rows behind this front."""
        layers, start = len(self.bed.adapter.layouts), self.prompt.tokens
        asked = [
            self._prompt(question.tail, slid=setting == "slid")
            for setting in SETTINGS
            for question in self.bed.questions
        ]
        plans = [
            LinkPlan("window", one.tokens, layers, tuple(computed(one, layers, start, one.tokens))) for one in asked
        ]
        return asked, plans

    @torch.inference_mode()
    def ask(self, given: Mapping[int, Rows] | None = None) -> Logits:
        """Answers of every question in both settings, with other position-free rows for the pages at some places."""
        adapter, table, start = self.bed.adapter, self.table, self.prompt.tokens
        held = []
        for at, rows in (given or {}).items():
            segment, _ = self.prompt.chunk_segments[at]
            slots = slice(*segment.rows)
            book = PhaseBook(adapter.tables, self.prompt.positions[:, slots].to(adapter.device))
            for layer, (layout, own) in enumerate(zip(adapter.layouts, rows, strict=True)):
                before = table.read(layer, *segment.rows)
                held.append((layer, slots, LayerRows(before.keys.clone(), before.values.clone())))
                table.write(layer, slots, place(own, layout, book, adapter.dtype))
        asked, plans = self._asked
        try:
            found = [one.cpu().numpy() for one in endings(Executor(adapter), table, asked, plans, start)]
        finally:
            for layer, slots, before in held:
                table.write(layer, slots, before)
        count = len(self.bed.questions)
        return {setting: found[place * count : (place + 1) * count] for place, setting in enumerate(SETTINGS)}


def _own(rows: Rows) -> Rows:
    """Rows apart from the table they were read from: what is not turned is a view of it."""
    return tuple(LayerRows(one.keys.clone(), one.values.clone()) for one in rows)


def difference(rows: Rows, base: Rows) -> Rows:
    """Layer by layer, rows less others; float32."""
    return tuple(deficit(one, other) for one, other in zip(rows, base, strict=True))


def added(rows: Rows, patch: Patch) -> Rows:
    """Position-free rows with a patch added."""
    return tuple(one if layer is None else layer.apply(one) for one, layer in zip(rows, patch.layers, strict=True))


def norm(rows: Rows) -> float:
    """The norm of rows over all layers, keys and values together."""
    return float(sum(one.keys.square().sum() + one.values.square().sum() for one in rows)) ** 0.5
