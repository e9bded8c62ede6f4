"""Rows of a prompt that do not lie side by side, computed as one virtual request.

vLLM computes rows that follow one another, so each run of rows would be a request of its own. Here the runner is shown
a request whose prompt is these rows alone. Before the forward they get their own positions, and the slots that they
have in the prompt's pages; and in each layer what they attend is worked out here, over all rows of the prompt before
each of them, apart from the backend's kernel. No other row of the batch is touched.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from emblema.errors import EmblemaError
from emblema.kv.layout import LayerRows
from emblema.link.prompt import Rows
from emblema.link.second_pass import runs_of
from emblema.models.noting import QuestionAttention, QuestionReadings, attention_weights
from emblema.vllm import attention
from emblema.vllm.attention import PromptRuns, in_runs
from emblema.vllm.pages import PagePlaces, Pages, RowPlaces
from emblema.vllm.step_metadata import PlacedFeature, SidePrompt

_log = logging.getLogger(__name__)
LEAST_WEIGHED, MOST_WEIGHED = 16, 128
WEIGHTS, DEVICE_WEIGHTS = 2**18, 2**24
"""Rows whose attention is worked out at once, by how many weights they have: what a processor's cache holds, or more on
an accelerator, where each step costs a launch."""


class NotedQuestion:
    """What one question attends, over as many steps as it takes.

    Args:
        question: its rows of the prompt.
        layers: how many layers are noted.
        device: of the pages.
    """

    def __init__(self, question: Rows, layers: int, device: torch.device) -> None:
        self.question = question
        self._attention = QuestionAttention(question[1] - question[0], question[1], device)
        # How many rows each layer noted: each has to have noted all of them.
        self._noted = [0] * layers

    def add(self, layer: int, start: int, weights: Tensor) -> None:
        """Add what rows from `start` on attend in a layer: weights [heads, queries, rows] over the first rows."""
        count = weights.shape[1]
        places = torch.arange(start - self.question[0], start - self.question[0] + count)
        self._attention.add(layer, places, weights)
        self._noted[layer] += count

    @property
    def readings(self) -> QuestionReadings | None:
        """What was noted, on the CPU; None where a layer missed any of the question's rows."""
        rows = self.question[1] - self.question[0]
        if any(noted != rows for noted in self._noted):
            return None
        found = self._attention.readings
        return QuestionReadings(found.last.cpu(), found.largest.cpu())


@dataclass(frozen=True, slots=True)
class WeighedRows:
    """Packed rows whose attention is worked out at once: the same in every layer.

    Attributes:
        first, last: of the packed rows; the second is not among them.
        mask: [rows, stop] float32 over the prompt's rows up to the last of them, added to scores.
    """

    first: int
    last: int
    mask: Tensor

    @property
    def stop(self) -> int:
        """The row of the prompt after the last that any of them attends."""
        return self.mask.shape[1]


def weighed_rows(rows: Tensor, heads: int, device: torch.device) -> tuple[WeighedRows, ...]:
    """Return rows of a prompt in parts that are small enough.

    Args:
        rows: [rows] int64 on the CPU, their numbers in the prompt, in order.
        heads: of the queries.
        device: of the masks.
    """
    most = WEIGHTS if device.type == "cpu" else DEVICE_WEIGHTS
    count = max(LEAST_WEIGHED, min(MOST_WEIGHED, most // (heads * (int(rows[-1]) + 1))))
    made: list[WeighedRows] = []
    for first in range(0, len(rows), count):
        own = rows[first : first + count]
        stop = int(own[-1]) + 1
        mask = torch.zeros(len(own), stop).masked_fill_(torch.arange(stop) > own[:, None], float("-inf"))
        made.append(WeighedRows(first, first + len(own), mask.to(device, non_blocking=True)))
    return tuple(made)


@dataclass(slots=True, eq=False)
class PackedRows:
    """Rows of one prompt in the step under way.

    Attributes:
        blocks: the prompt's pages in order.
        rows: [rows] int64, their numbers in the prompt, in order.
        first: row that the first of them is in the virtual request's own prompt; all pages from there on are no other
            request's.
        positions: [axes, rows] or [rows] int64.
        question: takes what those of its rows attend that are among them; None where that is not noted.
        place: the first of the rows in the batch, once that is known.
        in_runs: whether the backend's kernel attends what they attend.
        attended: where the rows that they attend lie in pages, once that is known.
        parts: whose attention is worked out at once, once that is known.
        layers: in how many layers they have attended.
        failed: whether anything of it went wrong.
    """

    blocks: Sequence[int]
    rows: Tensor
    first: int
    positions: Tensor
    question: NotedQuestion | None = None
    place: int | None = field(default=None, init=False)
    in_runs: bool = field(default=False, init=False)
    attended: RowPlaces | PagePlaces | None = field(default=None, init=False)
    parts: tuple[WeighedRows, ...] = field(default=(), init=False)
    layers: int = field(default=0, init=False)
    failed: bool = field(default=False, init=False)

    @property
    def stop(self) -> int:
        """The row of the prompt after the last of them."""
        return int(self.rows[-1]) + 1


def packed_prompt(
    prompt: SidePrompt, encodings: Mapping[str, Tensor], name: str, first: int, rows: Tensor
) -> tuple[SidePrompt, dict[str, Tensor]]:
    """Return a prompt with some of its rows alone behind its first ones, and what the encoder made of these.

    Args:
        prompt: it.
        encodings: what the encoder made of its pictures, by their names there.
        name: the pictures' new names begin with it.
        first: how many rows count as computed.
        rows: [rows] int64, from `first` on and in order.
    """
    # One more token than there are rows: a prompt that is not complete gives no token.
    tokens = [*prompt.token_ids[:first], *(prompt.token_ids[row] for row in rows.tolist()), 0]
    features: list[PlacedFeature] = []
    outputs: dict[str, Tensor] = {}
    for feature in prompt.features:
        inside = ((rows >= feature.start) & (rows < feature.stop)).nonzero().squeeze(1)
        if len(inside) == 0:
            continue
        filled = torch.ones(feature.rows, dtype=torch.bool) if feature.filled is None else feature.filled
        own = rows[inside] - feature.start
        here = filled[own]
        made = f"{name}\0{len(features)}"
        outputs[made] = encodings[feature.name][(filled.cumsum(0) - 1)[own][here]]
        features.append(replace(feature, name=made, start=first + int(inside[0]), rows=len(inside), filled=here))
    return SidePrompt(tokens, tuple(features), prompt.blocks), outputs


class PackedForward:
    """Has packed rows of one worker's model computed as what they are, and keeps what the model returns.

    No error in here reaches the forward: the rows are marked as failed.

    Args:
        model: vLLM's.
        layers: its attention layers in order.
        pages: their pages.
        block_size: rows of vLLM's page.
    """

    def __init__(self, model: Any, layers: Sequence[Any], pages: Callable[[], Pages], block_size: int) -> None:
        self._model, self._pages, self._block_size = model, pages, block_size
        self._packs: Sequence[PackedRows] = ()
        self._hidden: Tensor | None = None
        self.layers, self._layers = len(layers), layers
        self._refusal = next(filter(None, map(attention.unlike_attention, layers)), None)
        for number, layer in enumerate(layers):
            attention.add_to_attention(layer, self._attending(number))
        model.register_forward_pre_hook(self._place_all, with_kwargs=True)
        model.register_forward_hook(self._keep_hidden)

    def begin_step(self, packs: Sequence[PackedRows]) -> None:
        """Take the packed rows of the next forward."""
        self._packs, self._hidden = tuple(packs), None

    def end_step(self) -> None:
        """Let go of what the forward made."""
        self._packs, self._hidden = (), None

    def is_complete(self, pack: PackedRows) -> bool:
        """Return whether packed rows were computed as what they are in every layer."""
        return not pack.failed and pack.place is not None and pack.layers == self.layers

    @torch.inference_mode()
    def last_logits(self, pack: PackedRows) -> Tensor | None:
        """Return the logits of the last of some rows [vocab] float32; None where it was not seen in the forward.

        All workers of a model have to ask for the same rows in the same order.
        """
        if self._hidden is None:
            return None
        row = 0 if pack.place is None else pack.place + len(pack.rows) - 1
        logits = self._model.compute_logits(self._hidden[row : row + 1])
        return logits[0].float() if self.is_complete(pack) and logits is not None else None

    def _keep_hidden(self, model: Any, given: Any, made: Any) -> None:
        hidden = made[0] if isinstance(made, tuple) else made
        if self._packs and isinstance(hidden, Tensor):
            self._hidden = hidden

    def _guarded(self, pack: PackedRows, work: Callable[[], None]) -> None:
        """Do a part of some rows' work; where it fails nothing else in the batch may suffer."""
        try:
            work()
        except Exception as error:
            self._fail(pack, error)

    def _fail(self, pack: PackedRows, error: Exception) -> None:
        pack.failed = True
        expected = isinstance(error, EmblemaError)
        _log.warning("emblema: packed rows could not be computed: %s", error, exc_info=not expected)

    def _place_all(self, model: Any, given: Any, named: Mapping[str, Any]) -> None:
        @cache
        def context() -> tuple[Callable[[Sequence[int], Rows], int], list[Tensor]]:
            metadata, slots = attention.step_context()
            return attention.rows_in_batch(metadata, self._block_size), slots

        for pack in self._packs:
            self._guarded(pack, lambda pack=pack: self._place(pack, *context(), named["positions"]))  # type: ignore[misc]
        packs = [pack for pack in self._packs if not pack.failed]
        if packs:
            try:
                self._split(packs)
            except Exception as error:
                for pack in packs:
                    self._fail(pack, error)

    def _split(self, packs: Sequence[PackedRows]) -> None:
        """Have a kernel that can attend runs of rows do so."""
        prompts = {pack.place: PromptRuns(pack.blocks, runs_of(pack.rows)) for pack in packs if pack.place is not None}
        if attention.change_metadata(lambda metadata: in_runs(metadata, self._layers[0], prompts)):
            for pack in packs:
                pack.in_runs = True

    def _place(
        self, pack: PackedRows, find: Callable[[Sequence[int], Rows], int], slots: Sequence[Tensor], positions: Tensor
    ) -> None:
        """Find rows in the batch, and have them computed at their positions and written to their slots."""
        if self._refusal is not None:
            raise EmblemaError(self._refusal)
        count, pages = len(pack.rows), self._pages()
        begin = find(pack.blocks, (pack.first, pack.first + count))
        own = slice(begin, begin + count)
        if positions[..., own].shape != pack.positions.shape:
            raise EmblemaError(f"the model takes positions {tuple(positions.shape)}, not {pack.positions.dim()} axes")
        reached = pages.slots(pack.blocks, pack.stop)
        pack.attended = pages.locate_prompt(pack.blocks, pack.stop)
        positions[..., own] = pack.positions.to(positions)
        for each in slots:
            each[own] = reached[pack.rows].to(each)
        pack.place = begin

    def _attending(self, layer: int) -> Callable[[Any, Any, int, float], None]:
        def attend(queries: Any, output: Any, heads: int, scale: float) -> None:
            def attend_pack(pack: PackedRows) -> None:
                shape = queries.shape[0], heads, -1
                self._attend(layer, pack, queries.view(shape), output.view(shape), scale)

            for pack in self._packs:
                if not pack.failed:
                    self._guarded(pack, partial(attend_pack, pack))

        return attend

    def _attend(self, layer: int, pack: PackedRows, queries: Tensor, output: Tensor, scale: float) -> None:
        """Have packed rows' output [tokens, heads, width] in a layer be what they attend, and note what is noted."""
        place = pack.place
        if place is None or pack.attended is None:
            raise EmblemaError("the rows' places in the batch are not known")
        count, noted = len(pack.rows), pack.question
        own = queries[place : place + count].transpose(0, 1)
        behind = count if noted is None else int((pack.rows < noted.question[0]).sum())
        if pack.in_runs:
            self._note(layer, pack, own, behind, scale)
        else:
            held = self._pages().read(layer, pack.attended)
            pack.parts = pack.parts or weighed_rows(pack.rows, len(own), own.device)
            for part, weights, made in attend_before(own, held, pack.parts, scale):
                output[place + part.first : place + part.last] = made.transpose(0, 1)
                if noted is not None and part.last > behind:
                    first = max(part.first, behind)
                    noted.add(layer, int(pack.rows[first]), weights[:, first - part.first :])
        pack.layers += 1

    def _note(self, layer: int, pack: PackedRows, own: Tensor, behind: int, scale: float) -> None:
        """Note what packed rows [heads, rows, width] attend where the kernel attends it.

        Args:
            layer: the layer.
            pack: the rows.
            own: their queries.
            behind: the place of the question's first.
            scale: of the products of queries and keys.
        """
        noted = pack.question if behind < len(pack.rows) else None
        if pack.attended is None or noted is None:
            return
        keys = self._pages().read_keys(layer, pack.attended)
        asked, queries = pack.rows[behind:], own[:, behind:]
        pack.parts = pack.parts or weighed_rows(asked, len(own), own.device)
        for part in pack.parts:
            noted.add(layer, int(asked[part.first]), _weights(queries, keys, part, scale))


def attend_before(
    queries: Tensor, held: LayerRows, parts: Sequence[WeighedRows], scale: float
) -> Iterator[tuple[WeighedRows, Tensor, Tensor]]:
    """Yield what some rows of a prompt attend: all rows up to each of them.

    Args:
        queries: [heads, rows, width].
        held: the prompt's rows.
        parts: of these rows.
        scale: of the products of queries and keys.

    Yields:
        a part, its weights [heads, rows, stop] float32, and what it attends [heads, rows, width] float32.
    """
    values = held.values.float()
    for part in parts:
        weights = _weights(queries, held.keys, part, scale)
        made = torch.bmm(weights.view(len(values), -1, part.stop), values[:, : part.stop])
        yield part, weights, made.view(len(queries), part.last - part.first, -1)


def _weights(queries: Tensor, keys: Tensor, part: WeighedRows, scale: float) -> Tensor:
    return attention_weights(queries[:, part.first : part.last], keys[:, : part.stop], part.mask, scale)
