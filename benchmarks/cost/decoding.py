"""Decoding over stock `generate()`, with what a token reads and computes (Kamera, figure 11a)."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.table import Bar, Cell, Table
from emblema.kv.device import wait_for
from emblema.kv.layout import LayerRows
from emblema.models.decode_steps import step_recorder
from emblema.session.decoding import DecodeStart, Sampler, Sampling
from emblema.session.solo_decoding import SoloDecoding

OURS, STOCK, STATIC = "emblema", "generate()", "generate(), static cache"
BAR_RATE, DEVICE_RATE = 1.0, 1 / 1.05


class Decoding:
    """A table of random rows, and a stock cache of the rows of as many random words, each decoded from and put back.

    Args:
        subject: the model.
        rows: rows before the first new token.
        tokens: new tokens a run.
    """

    def __init__(self, subject: CostSubject, rows: int, tokens: int) -> None:
        from transformers import DynamicCache

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
        self.cache: Any = DynamicCache()
        embeds = adapter.embed(self.ids[0, :rows].cpu())[None]
        subject.stock_forward(embeds, torch.arange(rows).expand(adapter.axes, -1), self.cache)

    def token_seconds(self) -> list[float]:
        """Decode, and return the seconds of each token, the first one's sampling left out."""
        start = DecodeStart(self.table, self.logits, self.rows, self.rows, self.subject.adapter.axes)
        moments = []
        for _ in self.solo.tokens(start, Sampler(Sampling(max_new_tokens=self.tokens + 1)), frozenset()):
            wait_for(self.subject.device)
            moments.append(time.perf_counter())
        self.table.truncate(self.rows)
        return [after - before for before, after in zip(moments, moments[1:], strict=False)]

    def ours(self) -> float:
        """Decode, and return the seconds of a token."""
        return sum(self.token_seconds()) / self.tokens

    def stock(self) -> float:
        """Have transformers generate after the same number of rows; return the seconds of a token, likewise."""
        seconds = self._generate(past_key_values=self.cache)
        self.cache.crop(self.rows - int(self.cache.get_seq_length()))
        return seconds

    def static(self) -> float:
        """The same with transformers' static cache, which it compiles on a device; rows are prefilled each time."""
        return self._generate(cache_implementation="static")

    @torch.inference_mode()
    def _generate(self, **options: Any) -> float:
        from transformers import GenerationConfig

        moments = []

        def note(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            wait_for(self.subject.device)
            moments.append(time.perf_counter())
            return scores

        settings = GenerationConfig(max_new_tokens=self.tokens + 1, do_sample=False, pad_token_id=0)
        self.subject.model.generate(
            input_ids=self.ids, attention_mask=torch.ones_like(self.ids), generation_config=settings,
            logits_processor=[note], use_cache=True, eos_token_id=None, **options,
        )  # fmt: skip
        return (moments[-1] - moments[0]) / self.tokens


def decode_table(subject: CostSubject, lengths: Sequence[int], tokens: int, pace: Pace, static: bool = False) -> Table:
    """Return tokens a second by rows attended, over stock `generate()`, with bytes and operations of a token."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    failed = ""
    for length in lengths:
        decoding = Decoding(subject, length, tokens)
        actions: dict[str, Action] = {OURS: decoding.ours, STOCK: decoding.stock}
        if static and not failed:
            # It is compiled, which a machine may lack the tools for: the others are measured without it.
            try:
                decoding.static()
                actions[STATIC] = decoding.static
            except Exception as error:
                failed = f" The static cache could not be measured ({type(error).__name__}: {str(error)[:200]})."
        found = interleaved(actions, subject.device, pace)
        attended = length + tokens // 2
        size = subject.decoder_parameters * subject.dtype.itemsize + attended * subject.row_bytes
        operations = 2 * subject.decoder_parameters + _attention_operations(subject, attended)
        quickest = found.least(tuple(name for name in actions if name != OURS))
        for name in actions:
            rate = 1 / found.median(name)
            rows.append((length, name, rate, found.ratio(quickest, name), size / 1e6, operations / size))
        bound = BAR_RATE if subject.device.type == "cpu" else DEVICE_RATE
        ratio = found.median(quickest) / found.median(OURS)
        bars.append(Bar(f"decode after {length:,} rows, tokens/s over generate()", ratio, bound))
        del decoding
    return Table(
        "decode",
        "Decoding one sequence, greedily",
        f"{tokens} tokens after random rows, over the quicker `generate()`; MB: weights and KV that one reads.{failed}",
        ("rows", "who", "tokens/s", "over stock", "MB", "flop/byte"),
        tuple(rows),
        bars=tuple(bars),
    )


def _attention_operations(subject: CostSubject, attended: int) -> int:
    """Return operations of one row's attention: scores and sums of every query head, in every layer."""
    widths = (
        layout.keys[1] + (layout.keys[1] + layout.values[1] if layout.kind == "latent" else layout.keys[1])
        for layout in subject.adapter.layouts
    )
    return 2 * int(subject.adapter.config.num_attention_heads) * attended * sum(widths)
