"""One generic adapter over the encoder and the decoder of a transformers vision-language model."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from emblema.errors import ModelError, PromptError, UnsupportedModelError
from emblema.kv.chunk import Encoded
from emblema.kv.compact_map import CompactMap
from emblema.kv.layout import KVRows, LayerLayout, LayerRows, MappedRows
from emblema.kv.rotation import PhaseBook, RotaryTable, move_rows
from emblema.models.attention import (
    AttendedRows,
    attending_anew,
    attending_by,
    attending_rows,
    is_watched,
    row_attend,
)
from emblema.models.batch import RowBatch
from emblema.models.batch_table import BatchTable
from emblema.models.calibrate import CONVOLUTION, Calibration, cache_argument, calibrate, layer_types
from emblema.models.cells import PictureCells, cells_of
from emblema.models.encoder_pauses import pausing
from emblema.models.families import family_of
from emblema.models.families.base import Features, Prepared
from emblema.models.fingerprint import WatchedWeights
from emblema.models.layer_feed import LayerFeed, Narrow
from emblema.models.linear_attention import LINEAR, StateScan, find_state_mixer
from emblema.models.positions import chunk_positions
from emblema.models.structure import (
    context_length,
    decoder_layers,
    find_decoder,
    layer_devices,
    layer_windows,
    position_axes,
    refuse_unsupported,
    row_layers,
)
from emblema.models.tables import KVTable
from emblema.models.token_inputs import token_inputs
from emblema.models.tower_rows import KeptTowerRows, attends_by_runs


class Adapter:
    """Encodes media and runs a decoder for any rows of a prompt; holds no state on the model.

    Args:
        model: a transformers vision-language model in eval mode.
        anchor: token ids that chunks are prefilled after (see `capture`).

    Attributes:
        weights: tells whether they are what they were.
        whole_layers: attention modules of the encoder's layers that attend over whole pictures; see `Family`.
        tower_rows: of these, of the latest pictures of all tenants.
        layouts: of the rows of each layer that keeps some; in some models the last layers attend those of others.
        devices: of each layer, and of its rows.
        sharded: whether a part of the decoder is elsewhere than `device`; what all layers are given goes to each
            device once.
        block_rows: rows run at once in a whole-decoder call; bounds the mask's memory on long prompts.
        pause: called between forwards, blocks of rows and layers, before more than `block_rows` rows would have run
            since the last time (a row that runs in one layer alone counts as that share of one), and in a long run of
            the encoder. Others may decode, prefill and encode there; None calls nothing. What it raises ends the
            forward.

    Raises:
        UnsupportedModelError: on construction, when a layer's rows cannot be relocated exactly, or it cannot be run
            where it is; names the layer.
        PromptError: on construction, when the anchor has a token outside the vocabulary.
    """

    block_rows = 2048

    def __init__(self, model: Any, anchor: Sequence[int] = ()) -> None:
        self.model, self.anchor = model, tuple(anchor)
        self.decoder: Any = find_decoder(model)
        self.layers, self.names = decoder_layers(model, self.decoder)
        self.config: Any = self.decoder.config
        self.types = layer_types(self.decoder, len(self.layers))
        refuse_unsupported(self.decoder, self.layers, self.names)
        self.devices, self.sharded = layer_devices(model, self.decoder, self.layers, self.names)
        self.kind = family_of(model.config)
        self.family = self.kind.name
        if model.training:
            raise ModelError(f"{type(model).__name__} is in training mode; call model.eval() first.")
        self.axes = position_axes(model, self.config)
        windows, own = layer_windows(self.config, self.types), row_layers(self.config, len(self.layers))
        self.calibration: Calibration = calibrate(self.decoder, self.layers[:own], self.names[:own], self.axes, windows)
        self.layouts: tuple[LayerLayout, ...] = self.calibration.layouts
        self.tables: dict[str, RotaryTable] = dict(self.calibration.tables)
        self._windows = windows
        self._convolutions = frozenset(i for i, each in enumerate(self.layouts) if each.kind == "convolution")
        found = {i: find_state_mixer(self.layers[i]) for i, each in enumerate(self.layouts) if each.kind == "linear"}
        self._mixers: dict[int, Any] = found
        self.weights = WatchedWeights(model)
        self._cache_argument = cache_argument(self.decoder)
        self.version = f"{self.family}/{self.kind.version()}"
        self.whole_layers = self.kind.whole_layers(model)
        self.tower_rows = KeptTowerRows()
        self.pause: Callable[[], None] | None = None
        # Rows since the last pause.
        self._unpaused = 0.0
        self.text_ids(torch.tensor(self.anchor, dtype=torch.int64))
        self._check_attention()

    @property
    def device(self) -> torch.device:
        """Where the embeddings are, and all that is not one layer's."""
        return torch.device(self._embedding.weight.device)

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.weight.dtype

    @property
    def keeps_states(self) -> bool:
        """Whether a layer keeps a state of all rows before, from which none can be hidden."""
        return bool(self._mixers)

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def context_length(self) -> int:
        """How many positions a prompt may take."""
        return context_length(self.config)

    @property
    def fingerprint(self) -> str:
        """Digest of configuration and weights, 256 bits, hex; read again after a tensor or an adapter was changed.

        Writes through `tensor.data` go unnoticed: see `WatchedWeights`.
        """
        return self.weights.digest()

    @property
    def _row_devices(self) -> tuple[torch.device, ...]:
        return self.devices[: len(self.layouts)]

    @property
    def _embedding(self) -> Any:
        return self.decoder.get_input_embeddings()

    def table(self, capacity: int) -> KVTable:
        """Return an empty KV table for one request."""
        return KVTable(self.layouts, capacity, self.dtype, self.device, self._row_devices)

    def batch_table(self, padded: bool = False) -> BatchTable:
        """Return an empty table for sequences that are decoded together."""
        return BatchTable(self.layouts, self.dtype, self.device, padded, self._row_devices)

    def phases(self, positions: Tensor) -> PhaseBook:
        """Return the phases of all layers at positions [axes, tokens], worked out already: any thread may read them."""
        book = PhaseBook(self.tables, positions.to(self.device))
        for layout, device in zip(self.layouts, self._row_devices, strict=True):
            if layout.rotary is not None:
                book.on(device)(layout.rotary)
        return book

    def text_ids(self, token_ids: Tensor) -> Tensor:
        """Return token ids [tokens] that all have embeddings: placeholders of media become token 0.

        Raises:
            PromptError: an id lies outside the vocabulary.
        """
        for blank in self.kind.blanks(self.model.config):
            token_ids = token_ids.masked_fill(token_ids == blank, 0)
        if token_ids.numel() and not _all_below(token_ids, self._embedding.num_embeddings):
            raise PromptError(f"A token id lies outside the model's vocabulary of {self._embedding.num_embeddings}.")
        return token_ids

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return embeddings [tokens, hidden] of token ids [tokens], scaled as the family's own forward does it."""
        known = self.text_ids(token_ids)
        with torch.inference_mode():
            return self._embedding(known.to(self.device)[None])[0]

    def features(self, prepared: Prepared) -> tuple[Tensor, Features]:
        """Run the encoder; return which tokens are of media [tokens] bool, and their features.

        Raises:
            ModelError: there are more or fewer features than such tokens.
        """
        media = self.kind.media_tokens(self.model.config, prepared.kind)
        visual = torch.isin(prepared.token_ids, torch.tensor(media, dtype=torch.int64))
        given = {
            name: value.to(self.device, self.dtype) if value.is_floating_point() else value.to(self.device)
            for name, value in prepared.features.items()
        }
        pause = nullcontext() if self.pause is None else pausing(self.model, self.decoder, self._pause)
        with torch.inference_mode(), pause:
            features = self.kind.encode(self.model, replace(prepared, features=given))
        if features.media.shape[0] != int(visual.sum()):
            raise ModelError(
                f"The encoder of {self.family} gave {features.media.shape[0]} features for {int(visual.sum())} "
                "placeholder tokens; the processor's options do not fit the model."
            )
        return visual, features

    def encode(self, prepared: Prepared) -> Encoded:
        """Run the encoder (not the decoder) on one prepared piece of media."""
        self.give_way(len(prepared.token_ids))
        visual, features = self.features(prepared)
        with torch.inference_mode():
            # Placeholder ids may lie outside the embedding matrix; their rows are overwritten anyhow.
            embeds = self.embed(prepared.token_ids.masked_fill(visual, 0)).clone()
            embeds[visual.nonzero().squeeze(1).to(self.device)] = features.media.to(embeds)
        positions, span = chunk_positions(prepared.token_ids.shape[0], self.axes, prepared.grid)
        return Encoded(
            prepared.token_ids,
            embeds,
            positions,
            span,
            visual,
            tuple(layer.to(embeds) for layer in features.deepstack),
            self._groups(visual),
        )

    def cells(self, prepared: Prepared) -> PictureCells | None:
        """Return the cells of a picture, which are encoded apart; None where that cannot be done."""
        if self.whole_layers and not attends_by_runs(self.whole_layers):
            return None
        return cells_of(self.kind, self.model.config, prepared, not self.whole_layers)

    def encode_text(self, token_ids: Tensor) -> Encoded:
        """Return what the decoder is fed for a passage of text, token ids [tokens]."""
        ids = token_ids.to(device="cpu", dtype=torch.int64)
        positions, span = chunk_positions(ids.shape[0], self.axes)
        none = torch.zeros(ids.shape[0], dtype=torch.bool)
        return Encoded(ids, self.embed(ids), positions, span, none, (), self._groups(none))

    def _groups(self, visual: Tensor) -> Tensor:
        """Return groups [tokens]: each unbroken run of media tokens, where the family is bidirectional; else -1."""
        if not self.kind.bidirectional(self.model.config):
            return torch.full(visual.shape, -1, dtype=torch.int64)
        before = torch.nn.functional.pad(visual, (1, 0))[:-1]
        return torch.where(visual, (visual & ~before).long().cumsum(0) - 1, -1)

    def forward(
        self,
        batch: RowBatch,
        table: KVTable,
        narrow: Narrow | None = None,
        wanted: int | None = None,
    ) -> Tensor:
        """Run rows through the decoder, write their KV at their slots, attend over the whole table.

        Args:
            narrow: after layer l, `narrow(l)` gives the indices of the rows that later layers still compute (None:
                all).
            wanted: how many of the last rows' hidden states are wanted, None for all: the last layer need not attend
                for others. It does not go with `narrow`.

        Returns:
            Hidden states [rows kept, hidden] after the final norm, on `device`; of the last `wanted` rows where that is
            given.
        """
        if batch.embeds.shape[0] == 0:
            return batch.embeds.new_empty(0, self.hidden_size)
        with torch.inference_mode():
            if narrow is not None:
                return self._run(batch, table, narrow=narrow)
            parts = [batch]
            if len(batch.slots) > self.block_rows:
                parts = batch.blocks(table.rows[batch.slots], table.groups[batch.slots], self.block_rows)
            if self.keeps_states:
                parts = [own for part in parts for own in part.by_hidden()]
            hidden, left = [], len(batch.slots)
            for part in parts:
                self.give_way(len(part.slots))
                left -= len(part.slots)
                own = None if wanted is None else min(len(part.slots), max(0, wanted - left))
                run = self._run(part, table, own)
                hidden.append(run if own is None else run[len(run) - own :])
            return hidden[0] if len(hidden) == 1 else torch.cat(hidden)

    def give_way(self, rows: float) -> None:
        """Pause if so many more rows would be more than a block since the last pause."""
        if self._unpaused and self._unpaused + rows > self.block_rows:
            self._pause()
            self._unpaused = 0.0
        self._unpaused += rows

    def _pause(self) -> None:
        if self.pause is not None:
            with attending_anew():
                self.pause()

    def _run(self, batch: RowBatch, table: KVTable, wanted: int | None = None, narrow: Narrow | None = None) -> Tensor:
        """Run rows through the decoder; return hidden states after the norm of those that stay to the end.

        A block around this that attends by a function of its own is given whole masks.
        """
        causal = self.kind.full_layers_causal
        seen = AttendedRows(table, batch.slots, self._windows, batch.hidden_from, causal, wanted)
        extra = self.kind.decoder_arguments(self.model.config, batch.visual, batch.deepstack)
        token_ids = None if batch.token_ids is None else batch.token_ids[None]
        extra |= token_inputs(self.decoder, token_ids, batch.visual[None])
        if wanted is not None and len(self.layouts) < len(self.layers) and not is_watched():
            narrow = self._leave_with_rows(len(batch.slots), wanted)
        share = 1 / len(self.layers)
        feed = LayerFeed(
            table,
            self.devices,
            seen,
            narrow,
            lambda rows: self.give_way(rows * share),
            self._convolutions,
            self._mixers,
        )
        ids = batch.positions if self.axes == 1 else batch.positions[:, None]
        table.slots = batch.slots
        try:
            masks = seen.masks if is_watched() else seen.no_mask()
            hidden = self._decoder_run(batch.embeds[None], ids, masks, feed, **extra)[0]
        finally:
            table.slots = table.rows_before = None
        return hidden if feed.rows is None else hidden[feed.rows.to(hidden.device)]

    def _leave_with_rows(self, rows: int, wanted: int) -> Narrow:
        """Have rows whose hidden states nobody wants leave after the last layer that keeps rows; one at least stays."""
        stay, last = torch.arange(rows - max(1, wanted), rows), len(self.layouts) - 1
        return lambda layer: stay if layer == last and len(stay) < rows else None

    def make_states(self, table: KVTable) -> None:
        """Have a table know the states of linear attention after all of its rows; decoding goes on from these."""
        with torch.inference_mode():
            self.state_scan(table).make_states()

    def state_scan(self, table: KVTable) -> StateScan:
        """Return what runs layers of linear attention over the rows of a table."""
        return StateScan(table, self._mixers)

    def decode(self, token_ids: Tensor, positions: Tensor, rows: Tensor, table: BatchTable) -> Tensor:
        """Run one new text row of each sequence of a batch, and append it.

        Args:
            token_ids: [sequences] int64.
            positions: [sequences] int64, the same on every axis.
            rows: [sequences] int64, each new row's place in its prompt.
            table: rows of the sequences.

        Returns:
            Logits [sequences, vocab] float32.
        """
        table.begin()
        count = table.sequences
        try:
            inputs = torch.zeros(3, table.shape.sequences, dtype=torch.int64)
            inputs[:, :count] = torch.stack((self.text_ids(token_ids), positions, rows))
            logits = self.decode_step(inputs.to(self.device, non_blocking=True), table)
        except BaseException:
            table.abandon()
            raise
        table.end()
        return logits[:count]

    def decode_step(self, inputs: Tensor, table: BatchTable) -> Tensor:
        """Run a step that has begun: what it tells the device depends on the step's shape alone.

        Args:
            inputs: token ids (of `text_ids`), positions and rows, [3, sequences, padding included] int64, on the
                model's device.
            table: rows of the sequences.

        Returns:
            Logits [sequences, vocab] float32, padding included.
        """
        token_ids, positions, rows = inputs
        ids = positions[:, None]
        if self.axes > 1:
            ids = ids.expand(self.axes, -1, -1)
        with torch.inference_mode():
            table.place(rows)
            embeds, feed = self._embedding(token_ids[:, None]), LayerFeed(table, self.devices)
            extra = token_inputs(self.decoder, token_ids[:, None])
            return self.logits(self._decoder_run(embeds, ids, table.masks(self._windows), feed, **extra)[:, 0])

    def _decoder_run(
        self, embeds: Tensor, ids: Tensor, masks: Mapping[int | None, Tensor], feed: LayerFeed, **extra: Any
    ) -> Tensor:
        """Run the decoder's own forward; return its hidden states [sequences, rows, hidden] on `device`.

        Args:
            embeds: [sequences, rows, hidden].
            ids: positions as the decoder takes them.
            masks: by window.
            feed: feeds the layers where they do not all get the same on one device.
            extra: further arguments of the decoder.
        """
        mask: Any = {kind: masks[window] for kind, window in zip(self.types, self._windows, strict=True)}
        # Layers that keep no rows of heads take no mask.
        mask |= {kind: None for kind in (CONVOLUTION, LINEAR) if kind in self.types}
        with (
            attending_rows(self.config, feed.attend),
            feed.feeding(self.layers) if self.sharded or feed.is_needed else nullcontext(),
        ):
            output = self.decoder(
                inputs_embeds=embeds,
                position_ids=ids,
                attention_mask=mask if len(masks) > 1 or None in mask.values() else next(iter(masks.values())),
                use_cache=True,
                **{self._cache_argument: feed.table},
                **extra,
            )
        return self._home(output.last_hidden_state)

    def _home(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device) if self.sharded else tensor

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [rows, vocab] float32 of final hidden states [rows, hidden], as the stock model gives them."""
        with torch.inference_mode():
            logits = self.model.get_output_embeddings()(hidden)
            cap = getattr(self.config, "final_logit_softcapping", None)
            if self.kind.softcap and cap is not None:
                logits = torch.tanh(logits / cap) * cap
            if self.kind.logits_scaling:
                logits = logits / self.config.logits_scaling
            return self._home(logits.float())

    def capture(self, encoded: Encoded) -> KVRows:
        """Return canonical KV, per layer in the model's layout: the chunk prefilled alone, after the anchor.

        Pretrained models make the first rows of a sequence attention sinks, or look for their sink in a first token.
        With an anchor no row of a chunk is one. Its rows are dropped, and positions are counted from the chunk.
        """
        table, batch = self._alone(encoded, self.anchor)
        self.forward(batch, table, wanted=0)
        first = len(self.anchor)
        rows = tuple(table.read(layer, first, first + encoded.tokens) for layer in range(len(self.layouts)))
        if first:
            source, target = self.phases(encoded.positions + first), self.phases(encoded.positions)
            rows = tuple(move_rows(rows, self.layouts, source, target, self.dtype))
        mapped = [layer for layer, layout in enumerate(self.layouts) if layout.is_mapped(encoded.tokens)]
        return tuple(self._mapped(table, layer, own) if layer in mapped else own for layer, own in enumerate(rows))

    def _mapped(self, table: KVTable, layer: int, rows: LayerRows) -> MappedRows:
        """Return the rows of a chunk, the last of a table, as a map of the layer's state."""
        layout, stop = self.layouts[layer], table.length
        with torch.inference_mode():
            made = self.state_scan(table).make_map(layer, stop - rows.tokens + layout.front, stop).at(layout.front)
            kept = CompactMap.of(made) if layout.compact else made
        return MappedRows.of(rows, [kept], layout.edge)

    def prefill(self, encoded: Encoded, shift: int = 0) -> tuple[KVRows, Tensor]:
        """Prefill a chunk after nothing, from position `shift`: its rows and its final hidden states."""
        table, batch = self._alone(encoded, shift=shift)
        hidden = self.forward(batch, table)
        rows: list[LayerRows] = [table.read(layer) for layer in range(len(self.layouts))]
        return tuple(rows), hidden

    def _alone(self, encoded: Encoded, anchor: Sequence[int] = (), shift: int = 0) -> tuple[KVTable, RowBatch]:
        """Return an empty table, and the rows of an anchor's text and of a chunk after it."""
        device, first = self.device, len(anchor)
        table = self.table(first + encoded.tokens)
        slots = torch.arange(first + encoded.tokens, device=device)
        embeds, visual, groups = encoded.embeds.to(device), encoded.visual.to(device), encoded.groups.to(device)
        positions = encoded.positions.to(device) + shift + first
        if first:
            embeds = torch.cat((self.embed(torch.tensor(anchor, dtype=torch.int64)), embeds))
            visual = torch.nn.functional.pad(visual, (first, 0))
            groups = torch.nn.functional.pad(groups, (first, 0), value=-1)
            positions = torch.cat((slots[:first].expand(len(positions), -1) + shift, positions), dim=1)
        table.allocate(slots, groups)
        deepstack = tuple(layer.to(device) for layer in encoded.deepstack)
        token_ids = torch.cat((torch.tensor(anchor, dtype=torch.int64), encoded.token_ids))
        return table, RowBatch(embeds, positions, slots, visual, deepstack, token_ids=token_ids)

    def _check_attention(self) -> None:
        """Refuse layers whose attention does not go through transformers' interface: they would attend other rows.

        Raises:
            UnsupportedModelError: there is one; names the first.
        """
        count = min(7, self._embedding.num_embeddings)
        asked: set[int] = set()

        def attend(module: Any, *given: Any, **extra: Any) -> Any:
            asked.add(int(module.layer_idx))
            return row_attend(module, *given, **extra)

        with attending_by(self.config, attend):
            self.prefill(self.encode_text(torch.arange(count)))
        for layer, name in enumerate(self.names):
            if layer not in asked | self._convolutions | self._mixers.keys():
                raise UnsupportedModelError(
                    f"{name} does not attend through transformers' interface, so it cannot attend rows of a table."
                )


def _all_below(token_ids: Tensor, most: int) -> bool:
    if len(token_ids) == 1:
        return 0 <= int(token_ids[0]) < most
    least, largest = token_ids.aminmax()
    return int(least) >= 0 and int(largest) < most
