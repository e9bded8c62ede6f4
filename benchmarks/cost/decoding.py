"""Decoding over stock `generate()`, and what bounds it: bytes over the copy rate (Kamera, figure 11a)."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.cost.rates import DeviceRates
from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.table import Bar, Cell, Table
from emblema.kv.device import wait_for
from emblema.kv.layout import LayerRows
from emblema.models.graph_recorder import step_recorder
from emblema.session.decoding import DecodeStart, Sampler, Sampling
from emblema.session.solo_decoding import SoloDecoding

OURS, STOCK, STATIC = "emblema", "generate()", "generate(), static cache"
BAR_RATE, DEVICE_RATE = 1.0, 1 / 1.05


class Decoding:
    """A table and stock caches of as many random rows, each decoded from, and put back.

    Args:
        subject: the model.
        rows: rows before the first new token.
        tokens: new tokens a run.
    """

    def __init__(self, subject: CostSubject, rows: int, tokens: int) -> None:
        self.subject, self.rows, self.tokens = subject, rows, tokens
        adapter = subject.adapter
        self.solo = SoloDecoding(adapter, step_recorder(subject.device))
        self.table = adapter.table(rows + tokens + 1)
        self.table.allocate(torch.arange(rows, device=subject.device))
        for layer, layout in enumerate(adapter.layouts):
            keys, values = (subject.numbers(heads, rows, width) for heads, width in (layout.keys, layout.values))
            self.table.write(layer, slice(0, rows), LayerRows(keys, values))
        self.logits = torch.zeros(adapter.vocab_size, device=subject.device)
        self.logits[subject.token_ids(1)[0]] = 1.0
        self.ids = torch.tensor([subject.token_ids(rows + 1)], device=subject.device)
        self.cache = self._stock_cache()

    def _stock_cache(self) -> Any:
        """Return a `DynamicCache` of random rows, in the shapes that the stock decoder writes."""
        from transformers import DynamicCache

        subject = self.subject
        probe, filled = DynamicCache(), DynamicCache()
        embeds = subject.adapter.embed(self.ids[0, :4].cpu())[None]
        subject.stock_forward(embeds, torch.arange(4).expand(subject.adapter.axes, -1), probe)
        layers: Any = probe.layers
        for index, layer in enumerate(layers):
            shapes = ((*held.shape[:2], self.rows, held.shape[3]) for held in (layer.keys, layer.values))
            keys, values = (subject.numbers(*shape) for shape in shapes)
            filled.update(keys, values, index)
        return filled

    def ours(self) -> float:
        """Decode, and return the seconds of a token, the first one's sampling left out."""
        start = DecodeStart(self.table, self.logits, self.rows, self.rows, self.subject.adapter.axes)
        sampler = Sampler(Sampling(max_new_tokens=self.tokens + 1))
        stream = self.solo.tokens(start, sampler, frozenset())
        next(stream)
        wait_for(self.subject.device)
        began = time.perf_counter()
        made = sum(1 for _ in stream)
        wait_for(self.subject.device)
        seconds = time.perf_counter() - began
        self.table.truncate(self.rows)
        return seconds / made

    def stock(self) -> float:
        """Have transformers generate after the same number of rows; return the seconds of a token, likewise."""
        moments = _Moments(self.subject.device)
        self._generate(moments, past_key_values=self.cache)
        self.cache.crop(self.rows - int(self.cache.get_seq_length()))
        return moments.seconds

    def static(self) -> float:
        """The same with transformers' static cache, which it compiles on a device; rows are prefilled each time."""
        moments = _Moments(self.subject.device)
        self._generate(moments, cache_implementation="static")
        return moments.seconds

    @torch.inference_mode()
    def _generate(self, moments: "_Moments", **options: Any) -> None:
        from transformers import GenerationConfig

        settings = GenerationConfig(max_new_tokens=self.tokens + 1, do_sample=False, pad_token_id=0)
        self.subject.model.generate(  # type: ignore[operator]
            input_ids=self.ids, attention_mask=torch.ones_like(self.ids), generation_config=settings,
            logits_processor=[moments], use_cache=True, eos_token_id=None, **options,
        )  # fmt: skip


class _Moments:
    """Moments at which stock `generate` has a token's logits; it is called as one of its processors."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._moments: list[float] = []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        wait_for(self._device)
        self._moments.append(time.perf_counter())
        return scores

    @property
    def seconds(self) -> float:
        """Seconds of a token, from the first one's logits to the last one's."""
        return (self._moments[-1] - self._moments[0]) / (len(self._moments) - 1)


def decode_table(
    subject: CostSubject, lengths: Sequence[int], tokens: int, rates: DeviceRates, pace: Pace, *, static: bool = False
) -> Table:
    """Return tokens a second by rows attended, over stock `generate()` and over what memory and arithmetic allow."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    weights, failed = subject.decoder_parameters, ""
    for length in lengths:
        decoding = Decoding(subject, length, tokens)
        actions: dict[str, Action] = {OURS: decoding.ours, STOCK: decoding.stock}
        if static and not failed:
            # It is compiled, which a machine may lack the tools for: the others are measured without it.
            try:
                decoding.static()
                actions[STATIC] = decoding.static
            except Exception as error:
                failed = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
        found = interleaved(actions, subject.device, pace)
        attended = length + tokens // 2
        size = weights * subject.dtype.itemsize + attended * subject.row_bytes
        operations = 2 * weights + _attention_operations(subject, attended)
        floor = size / rates.copy
        quickest = found.least(tuple(name for name in actions if name != OURS))
        for name in actions:
            seconds = found.median(name)
            rows.append(
                (length, name, 1 / seconds, found.ratio(quickest, name), size / 1e6, operations / size,
                 operations / seconds / 1e9, floor / seconds, found.count)
            )  # fmt: skip
        rate = found.median(quickest) / found.median(OURS)
        bound = BAR_RATE if subject.device.type == "cpu" else DEVICE_RATE
        bars.append(Bar(f"decode after {length:,} rows, tokens/s over generate()", rate, bound))
        del decoding
    return Table(
        "decode",
        "Decoding one sequence, greedily",
        f"{tokens} tokens after random rows, the first one's logits given; over stock: tokens/s over those of the "
        "quicker stock `generate()`. MB: what a token has to read (weights and KV). flop/byte: its operations over "
        f"that; below this machine's {rates.ridge:.1f} a token waits for memory and not for arithmetic (Kamera, figure "
        f"11a). of floor: reading so much at the measured copy rate ({rates.copy / 1e9:.1f} GB/s, read and written) "
        "over the time of a token; above 1 a read alone is quicker than a copy."
        f"{f' The static cache could not be measured ({failed}).' if failed else ''}",
        ("rows", "who", "tokens/s", "over stock", "MB", "flop/byte", "Gflop/s", "of floor", "rounds"),
        tuple(rows),
        bars=tuple(bars),
    )


def _attention_operations(subject: CostSubject, attended: int) -> int:
    """Return operations of one row's attention: scores and sums of every query head, in every layer."""
    config = subject.adapter.config
    heads = int(config.num_attention_heads)
    return sum(
        2
        * heads
        * attended
        * (2 * layout.keys[1] + layout.values[1] if layout.kind == "latent" else 2 * layout.keys[1])
        for layout in subject.adapter.layouts
    )
