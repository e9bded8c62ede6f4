"""Layers that keep a state: first tokens of linked prompts, and what chunks take at the shapes of models."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.table import Bar, Cell, Table
from emblema.kv.layout import LayerLayout
from emblema.models.linear_attention import linear_layout

TOKENS, CHUNKS, BOUND = 2000, 8, 0.15
LANES = ("blind", "mpic-3", "mpic-32", "patch-32")
LENGTHS = (256, 1000, 4000)
BYTES = 2
"""Of a number in bfloat16."""
SCAN = 64
"""Rows that are scanned at once."""


@dataclass(frozen=True, slots=True)
class TextShape:
    """Sizes of a text decoder of Qwen3.5: `experts` of a token where there are any, each of `intermediate`."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    value_heads: int
    experts: int = 1


SHAPES = {
    "Qwen3.5-9B": TextShape(32, 4096, 12288, 16, 4, 32),
    "Qwen3.5-27B": TextShape(64, 5120, 17408, 24, 4, 48),
    "Qwen3.5-35B-A3B": TextShape(40, 2048, 512, 16, 2, 32, experts=9),
}
"""From the configurations that are published; head widths are those of transformers' own."""


def states_table(subject: CostSubject, pace: Pace, tokens: int = TOKENS) -> Table:
    """Return the time to first token by method where layers keep a state; without lines where none does."""
    rows: tuple[tuple[Cell, ...], ...] = ()
    bars: tuple[Bar, ...] = ()
    if subject.adapter.keeps_states:
        with subject.prompt(tokens, CHUNKS, patches=("patch-32",)) as prompt:
            actions: dict[str, Action] = {lane: partial(subject.link, prompt, lane) for lane in ("full", *LANES)}
            found = interleaved(actions, subject.device, pace)
        rows = tuple((lane, 1e3 * found.median(lane), found.ratio(lane, "full")) for lane in actions)
        name = f"TTFT of {tokens:,} rows in {CHUNKS} chunks, blind, over full, layers with states"
        bars = (Bar(name, found.median("blind") / found.median("full"), BOUND, least=False),)
    return Table(
        "states",
        "Time to first token where layers keep a state",
        f"{tokens:,} rows in {CHUNKS} chunks, which keep maps of the states.",
        ("method", "TTFT ms", "over full"),
        rows,
        bars=bars if tokens == TOKENS else (),
    )


def sizes_table() -> Table:
    """Return what chunks take at the shapes of published models, in bfloat16, by the code's own counts."""
    rows: list[tuple[Cell, ...]] = []
    for name, shape in SHAPES.items():
        linear, heads, weights = layers_of(shape)
        states, others = 3 * shape.layers // 4, shape.layers // 4
        kept = linear.state
        assert kept is not None
        scan = kept.heads * (2 * SCAN * (2 * kept.key_width + kept.value_width) + 4 * kept.key_width * kept.value_width)
        setting = kept.heads * 2 * kept.key_width**2 * kept.value_width
        for tokens in LENGTHS:
            megabytes = [
                count * numbers * BYTES / 1e6
                for count, numbers in (
                    (others, heads.features * tokens),
                    (states, linear.features * tokens),
                    (states, linear.map_numbers),
                )
            ]
            work = (2 * weights * tokens, states * scan * tokens, states * setting)
            rows.append((name, tokens, *megabytes, linear.mapped_from, *(flops / 1e12 for flops in work)))
    return Table(
        "sizes",
        "Chunks where layers keep a state, at the shapes of published models",
        "In bfloat16, maps in eight bits; FLOPs of prefilling a chunk, of scanning its rows, and of setting its maps.",
        ("model", "tokens", "KV MB", "rows MB", "map MB", "map from", "prefill TFLOP", "scan TFLOP", "map TFLOP"),
        tuple(rows),
    )


def layers_of(shape: TextShape) -> tuple[LayerLayout, LayerLayout, int]:
    """Return the layouts of both kinds of layers, and the weights of all layers that a token goes through."""
    from transformers import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Attention, Qwen3_5GatedDeltaNet

    config: Any = Qwen3_5TextConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        linear_num_value_heads=shape.value_heads,
    )
    with torch.device("meta"):
        mixer, attention = Qwen3_5GatedDeltaNet(config, 0), Qwen3_5Attention(config, 3)
    heads = (shape.key_heads, int(config.head_dim))
    own = 3 * _weights(mixer) + _weights(attention)
    fed = 3 * shape.hidden * shape.intermediate * shape.experts
    return (
        linear_layout(mixer, torch.bfloat16),
        LayerLayout(heads, heads, None),
        shape.layers // 4 * own + shape.layers * fed,
    )


def _weights(module: nn.Module) -> int:
    return sum(weights.numel() for weights in module.parameters())
