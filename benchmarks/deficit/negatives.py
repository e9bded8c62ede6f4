"""Kamera's negatives (appendix B): ways to do without the conditioned forward, none of which should be enough."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.deficit.rank import matrix
from benchmarks.deficit.subject import Case, CaseAnswer, Subject, chunk_of, in_context
from benchmarks.deficit.tokens import again
from emblema.kv.layout import LayerRows
from emblema.kv.patch import deficit
from emblema.link.prompt import ChunkPart, Prompt
from emblema.link.strategies.first_tokens import SINK_TOKENS

OTHERS = 6
"""Other chunks, after the same antecedents, to teach the linear operator."""
RIDGE = 1e-3
"""Weight of the ridge, as a share of the mean square of the inputs."""


@dataclass(frozen=True, slots=True)
class Linear:
    """Per layer, a linear map with a constant, from features [tokens, inputs] to deficits of both slots."""

    weights: tuple[Tensor, ...]

    def __call__(self, layer: int, features: Tensor) -> Tensor:
        """Return [tokens, features of both slots] float32."""
        return (_with_one(features).double() @ self.weights[layer]).float()


def sink_answer(case: Case) -> CaseAnswer:
    """Return the first four rows computed in context: what a boundary fix can do."""
    rows = torch.zeros(case.subject.chunk.tokens, dtype=torch.bool)
    rows[:SINK_TOKENS] = True
    return again(case, rows)


def fit_operator(subject: Subject, others: Sequence[Subject]) -> Linear:
    """Return what these antecedents do to a chunk, as one linear map a layer, learned from other chunks after them."""
    inputs: list[list[Tensor]] = [[] for _ in range(subject.layers)]
    outputs: list[list[Tensor]] = [[] for _ in range(subject.layers)]
    for other in others[:OTHERS]:
        rows, _, _ = in_context(subject.adapter, _with_last(subject.front, other))
        for layer, (own, base) in enumerate(zip(rows, other.canonical, strict=True)):
            inputs[layer].append(both(base))
            outputs[layer].append(both(deficit(own, base)))
    return Linear(tuple(_ridge(torch.cat(x), torch.cat(y)) for x, y in zip(inputs, outputs, strict=True)))


def operated(subject: Subject, fitted: Linear) -> list[LayerRows]:
    """Return the deficits that the operator gives the subject's own chunk."""
    return [apart(fitted(layer, both(rows)), rows) for layer, rows in enumerate(subject.canonical)]


def fit_seed(subjects: Sequence[Subject]) -> Linear:
    """Return from the shallow half's deficits and a layer's canonical rows to that layer's deficit, over many items."""
    layers = subjects[0].layers
    return Linear(
        tuple(
            _ridge(
                torch.cat([_seen(subject, layer) for subject in subjects]),
                torch.cat([both(subject.deficits[layer]) for subject in subjects]),
            )
            for layer in range(layers)
        )
    )


def seeded(subject: Subject, fitted: Linear) -> list[LayerRows]:
    """Return true deficits in the shallow half of the layers, predicted ones in the deep half."""
    first = shallow_layers(subject)
    return [
        delta if layer < first else apart(fitted(layer, _seen(subject, layer)), rows)
        for layer, (delta, rows) in enumerate(zip(subject.deficits, subject.canonical, strict=True))
    ]


def shallow_layers(subject: Subject) -> int:
    """Return layers of the shallow half, the first that has a deficit among them."""
    return min(max(2, subject.layers // 2), subject.layers - 1)


def explained(subject: Subject, predicted: Sequence[LayerRows | None], first: int = 0) -> float:
    """Return 1 - |error|² / |deficit|² of keys and values in the layers from `first` on; NaN without a deficit."""
    off = whole = 0.0
    for layer in range(first, subject.layers):
        delta, guess = both(subject.deficits[layer]), predicted[layer]
        off += float((delta if guess is None else delta - both(guess)).square().sum())
        whole += float(delta.square().sum())
    return 1 - off / whole if whole else float("nan")


def both(rows: LayerRows) -> Tensor:
    """Return keys and values side by side, [tokens, features of both slots]."""
    return torch.cat((matrix(rows.keys), matrix(rows.values)), dim=1)


def apart(joined: Tensor, like: LayerRows) -> LayerRows:
    """Return what `both` joined, in the shape of `like`."""
    heads, _, width = like.keys.shape
    other, _, depth = like.values.shape
    keys, values = joined.split((heads * width, other * depth), dim=1)
    return LayerRows(
        keys.unflatten(1, (heads, width)).transpose(0, 1), values.unflatten(1, (other, depth)).transpose(0, 1)
    )


def _seen(subject: Subject, layer: int) -> Tensor:
    seeds = [both(delta) for delta in subject.deficits[: shallow_layers(subject)]]
    return torch.cat((both(subject.canonical[layer]), *seeds), dim=1)


def _with_last(front: Prompt, other: Subject) -> Prompt:
    """Return another chunk after the same antecedents."""
    last = replace(front.segments[-1], part=ChunkPart(chunk_of(other.segment)))
    return Prompt((*front.segments[:-1], last), front.axes, last.position + other.chunk.encoded.span)


def _with_one(features: Tensor) -> Tensor:
    return torch.cat((features, features.new_ones(features.shape[0], 1)), dim=1)


def _ridge(inputs: Tensor, outputs: Tensor) -> Tensor:
    x, y = _with_one(inputs).double(), outputs.double()
    square = x.T @ x
    square += RIDGE * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype, device=square.device)
    solved: Tensor = torch.linalg.solve(square, x.T @ y)
    return solved
